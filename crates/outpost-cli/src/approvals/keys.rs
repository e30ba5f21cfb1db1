//! `outpost approvals enroll`, `keys`, `rename`, `expire`, `revoke-key`: manages approver keys.

use super::write;
use crate::approver::signer::{agent_signer, ask_passphrase, file_signer, read_public_key};
use crate::approver::{self, Approver, Connected, unexpected};
use crate::console::printable;
use crate::paths::Paths;
use clap::Args;
use jiff::Timestamp;
use outpost_approvals::Client;
use outpost_approvals::approvers::{Approver as Entry, ApproverInfo, RootFile};
use outpost_approvals::signing::{KeyAction, KeyChange, KeyFile, PublicKey, Signer, fingerprint};
use outpost_approvals::wire::{Request, ServerMessage};
use outpost_ledger::unix_ms;
use outpost_sys::process::effective_uid;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Args)]
pub(super) struct Enroll {
    /// Name of the key in lists and records (default: USER@HOST)
    #[arg(long)]
    name: Option<String>,
    /// Create the new key without a passphrase
    #[arg(long)]
    no_passphrase: bool,
    /// Expiry of the key, in RFC 3339
    #[arg(long, value_name = "TIME")]
    expires: Option<Timestamp>,
    /// The key cannot approve commands as root
    #[arg(long)]
    no_root: bool,
    /// The key decides only for this user; repeatable
    #[arg(long = "for-user", value_name = "USER")]
    users: Vec<String>,
    /// The key decides only on this host; repeatable
    #[arg(long = "on-host", value_name = "HOST")]
    hosts: Vec<String>,
    /// Enrolled key that signs the enrollment [default: approver.key in the state directory, or an enrolled key in
    /// ssh-agent]
    #[arg(long, value_name = "FILE")]
    by: Option<PathBuf>,
}

#[derive(Args)]
pub(super) struct Keys {
    /// Print JSON
    #[arg(long, conflicts_with = "allowed_signers")]
    json: bool,
    /// Print an allowed-signers file for `ssh-keygen -Y verify` and `outpost audit verify --keys`
    #[arg(long)]
    allowed_signers: bool,
}

#[derive(Args)]
pub(super) struct Rename {
    /// Name or fingerprint of the key
    which: String,
    /// New name
    name: String,
}

#[derive(Args)]
pub(super) struct Expire {
    /// Name or fingerprint of the key
    which: String,
    /// Expiry, in RFC 3339
    time: Timestamp,
}

#[derive(Args)]
pub(super) struct Revoke {
    /// Name or fingerprint of the key
    which: String,
}

/// Root's approver file, if it is authoritative on this host.
fn root_file(paths: &Paths) -> Option<RootFile> {
    let etc = paths.guard.etc();
    let counts = paths.host.is_none() && (paths.is_guard || std::fs::symlink_metadata(&etc).is_ok());
    counts.then(|| RootFile::in_dir(&etc))
}

pub(super) async fn list(client: &mut Client, options: &Keys) -> Result<(), String> {
    let answer = client.ask(&Request::Keys).await.map_err(|error| error.to_string())?;
    let ServerMessage::Keys { keys, host } = answer else { return Err(unexpected(&answer)) };
    if options.json {
        return write(&crate::as_json(&keys)?);
    }
    if options.allowed_signers {
        let mut text = format!("host namespaces=\"outpost-host\" {}\n", printable(&host));
        for key in &keys {
            let name = printable(&key.name).replace(' ', "_");
            text += &format!("{name} namespaces=\"outpost-decision\" {}\n", printable(&key.key));
        }
        return write(&text);
    }
    let mut text = format!("{:<24} {:<50} {:<8} STATE\n", "NAME", "FINGERPRINT", "DECIDES");
    keys.iter().for_each(|key| text += &row(key));
    write(&text)
}

fn row(key: &ApproverInfo) -> String {
    let state = match (&key.revoked, &key.expires, key.usable) {
        (Some(since), ..) => format!("revoked {since}"),
        (None, Some(then), true) => format!("until {then}"),
        (None, Some(then), false) => format!("expired {then}"),
        (None, None, _) => "valid".to_owned(),
    };
    let mut scope = if key.root { "root" } else { "you" }.to_owned();
    for (what, names) in [("for", &key.users), ("on", &key.hosts)] {
        if !names.is_empty() {
            scope += &format!(" {what} {}", names.join(","));
        }
    }
    let (name, print) = (printable(&key.name), printable(&key.fingerprint));
    format!("{name:<24} {print:<50} {:<8} {}\n", printable(&scope), printable(&state))
}

/// The key to enroll: with its private half, or the public half only.
enum NewKey {
    Signer(Signer),
    Public(PublicKey),
}

impl NewKey {
    fn key(&self) -> &PublicKey {
        match self {
            NewKey::Signer(signer) => signer.key(),
            NewKey::Public(key) => key,
        }
    }
}

pub(super) async fn enroll(paths: &Paths, approver: &Approver, options: Enroll) -> Result<(), String> {
    let name = options.name.clone().unwrap_or_else(default_name);
    outpost_approvals::approvers::check_name(&name).map_err(|error| error.to_string())?;
    let root_file = root_file(paths);
    let new = new_key(approver, &options, root_file.is_some()).await?;
    if let Some(file) = root_file {
        return enroll_by_root(&file, &new, &name, &options);
    }
    let mut connected = approver.connect().await?;
    let enrolled = approver::keys(&mut connected.client).await?;
    let blob = new.key().to_bytes().map_err(|error| error.to_string())?;
    let old_secret = connected.hello.old_secret;
    let mut change = key_change(&connected, KeyAction::Enroll, &blob, &name)?;
    change.root = !options.no_root;
    (change.users, change.hosts) = (options.users, options.hosts);
    change.not_after_ms = options.expires.map_or(0, milliseconds);
    let print = fingerprint(new.key());
    let by = match (enrolled.is_empty(), new) {
        (true, NewKey::Signer(signer)) => signer,
        (true, NewKey::Public(_)) => {
            return Err("the first key must sign its own enrollment\nhint: pass its private half with --key, or use --ssh-agent".into());
        }
        (false, _) if enrolled.iter().any(|listed| listed.fingerprint == print) => {
            return Err(format!(
                "the key {print} is already enrolled\nhint: `outpost approvals keys` lists all keys"
            ));
        }
        (false, _) => signing_key(approver, options.by, &enrolled).await?,
    };
    submit(&mut connected, &change, by).await?;
    if old_secret && enrolled.is_empty() {
        errln!(
            "The previous approver secret no longer works: decisions are signed with this key from now on."
        );
    }
    if enrolled.is_empty() {
        errln!(
            "This is the first key of this daemon: it was accepted without a signature, and the audit log records that."
        );
    }
    write(&format!("enrolled {name} {print}\n"))
}

fn default_name() -> String {
    let user = outpost_sys::user::by_uid(effective_uid()).ok().flatten();
    let user =
        user.map_or_else(|| effective_uid().to_string(), |user| user.name.to_string_lossy().into_owned());
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = format!("{user}@{}", host.trim());
    name.chars().filter(char::is_ascii_graphic).take(64).collect()
}

fn milliseconds(time: Timestamp) -> u64 {
    u64::try_from(time.as_millisecond()).unwrap_or(1).max(1)
}

/// The key of `--key` or `--ssh-agent`; otherwise the default key, which is created if it does not exist.
async fn new_key(approver: &Approver, options: &Enroll, public_suffices: bool) -> Result<NewKey, String> {
    let choice = &approver.choice;
    if let Some(print) = &choice.ssh_agent {
        return agent_signer(print, &|_| true).map(NewKey::Signer);
    }
    let file = choice.key.as_deref().unwrap_or(&choice.default_key);
    if let Some(key) = read_public_key(file).filter(|_| public_suffices || options.by.is_some()) {
        return Ok(NewKey::Public(key));
    }
    if file.exists() {
        if public_suffices {
            let key = KeyFile::open(file).map_err(|error| error.to_string())?;
            return Ok(NewKey::Public(key.public().clone()));
        }
        return file_signer(file).await.map(NewKey::Signer);
    }
    if choice.key.is_some() {
        return Err(format!("key file not found: {}", file.display()));
    }
    make_key(file, options.no_passphrase).await.map(NewKey::Signer)
}

/// Creates an Ed25519 key file.
async fn make_key(file: &Path, bare: bool) -> Result<Signer, String> {
    let passphrase = match bare {
        true => zeroize::Zeroizing::default(),
        false if !std::io::stdin().is_terminal() => {
            return Err("a new key needs a passphrase, but there is no terminal to ask for it\n\
                        hint: use --no-passphrase, or --ssh-agent for a key in ssh-agent"
                .into());
        }
        false => {
            let typed = ask_passphrase("Passphrase for the new key:").await?;
            let again = ask_passphrase("Repeat the passphrase:").await?;
            if typed.is_empty() || typed != again {
                return Err(
                    "the passphrases are empty or differ\nhint: --no-passphrase creates a key without one"
                        .into(),
                );
            }
            typed
        }
    };
    let dir = file.parent().unwrap_or(file);
    crate::paths::make_private(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let file = file.to_owned();
    let make = move || {
        let made = KeyFile::create(&file, &passphrase, &default_name())?;
        let signer = made.unlock(&passphrase)?;
        errln!("Created the key {}. Keep it where no agent of this user can read it.", file.display());
        Ok::<Signer, outpost_approvals::Error>(signer)
    };
    let made = tokio::task::spawn_blocking(make).await.map_err(|error| error.to_string())?;
    made.map_err(|error| error.to_string())
}

/// An enrolled key that signs a change.
async fn signing_key(
    approver: &Approver,
    by: Option<PathBuf>,
    enrolled: &[ApproverInfo],
) -> Result<Signer, String> {
    let is_enrolled = |key: &PublicKey| {
        let print = fingerprint(key);
        enrolled.iter().any(|listed| listed.usable && listed.fingerprint == print)
    };
    if let Some(file) = by {
        return file_signer(&file).await;
    }
    let own = &approver.choice.default_key;
    let own_key = KeyFile::open(own).ok().filter(|file| is_enrolled(file.public()));
    match own_key {
        Some(_) => file_signer(own).await,
        None => agent_signer("", &is_enrolled).map_err(|why| {
            format!("an enrolled key must sign this change: {why}\nhint: name one with --by FILE")
        }),
    }
}

fn key_change(connected: &Connected, action: KeyAction, key: &[u8], name: &str) -> Result<KeyChange, String> {
    let host = connected.hello.host.to_bytes().map_err(|error| error.to_string())?;
    Ok(KeyChange::new(action, &host, connected.hello.head, key, name))
}

async fn submit(connected: &mut Connected, change: &KeyChange, by: Signer) -> Result<(), String> {
    let signed = outpost_approvals::sign(Arc::new(by), change.encode()).await;
    let signed = signed.map_err(|error| error.to_string())?;
    let request = Request::ChangeKey { statement: signed.statement, signature: signed.signature };
    match connected.client.ask(&request).await.map_err(|error| error.to_string())? {
        ServerMessage::KeyChanged { .. } => Ok(()),
        other => Err(unexpected(&other)),
    }
}

/// Enrolls in root's file. No signature is needed, because only root can write it.
fn enroll_by_root(file: &RootFile, new: &NewKey, name: &str, options: &Enroll) -> Result<(), String> {
    let bare = PublicKey::from(new.key().key_data().clone());
    if effective_uid() != 0 {
        let key = bare.to_openssh().map_err(|error| error.to_string())?;
        return Err(format!(
            "the approvers of this host are in {}, which only root can change\n\
             hint: as root, save this line in a file and run `outpost approvals enroll --name {name:?} --key FILE`:\n{key}",
            file.path().display()
        ));
    }
    let mut list = file.read().map_err(|error| error.to_string())?;
    list.enroll(Entry {
        key: bare,
        name: name.to_owned(),
        root: !options.no_root,
        users: options.users.clone(),
        hosts: options.hosts.clone(),
        not_after_ms: options.expires.map_or(0, milliseconds),
        revoked_ms: None,
    })
    .map_err(|error| error.to_string())?;
    file.write(&list).map_err(|error| error.to_string())?;
    let old = file.path().with_file_name("approver.sha256");
    if std::fs::remove_file(&old).is_ok() {
        errln!("Removed {}, the hash of the previous approver secret.", old.display());
    }
    write(&format!("enrolled {name} {}\n", fingerprint(new.key())))
}

pub(super) async fn rename(paths: &Paths, approver: Approver, options: Rename) -> Result<(), String> {
    let name = options.name.clone();
    let by_root = |entry: &mut Entry| entry.name = name;
    let change = |change: &mut KeyChange| change.name = options.name.clone();
    change_key(paths, approver, &options.which, KeyAction::Rename, by_root, change).await?;
    write(&format!("renamed {} to {}\n", printable(&options.which), printable(&options.name)))
}

pub(super) async fn expire(paths: &Paths, approver: Approver, options: Expire) -> Result<(), String> {
    let then = milliseconds(options.time);
    let by_root = |entry: &mut Entry| entry.not_after_ms = then;
    let change = |change: &mut KeyChange| change.not_after_ms = then;
    change_key(paths, approver, &options.which, KeyAction::Expire, by_root, change).await?;
    write(&format!("{} expires at {}\n", printable(&options.which), options.time))
}

pub(super) async fn revoke(paths: &Paths, approver: Approver, options: Revoke) -> Result<(), String> {
    let by_root = |entry: &mut Entry| entry.revoked_ms = Some(unix_ms());
    change_key(paths, approver, &options.which, KeyAction::Revoke, by_root, |_| {}).await?;
    write(&format!("revoked {}\n", printable(&options.which)))
}

/// Changes a key: in root's file, or with a statement signed by an enrolled key.
async fn change_key(
    paths: &Paths,
    approver: Approver,
    which: &str,
    action: KeyAction,
    by_root: impl FnOnce(&mut Entry),
    with: impl FnOnce(&mut KeyChange),
) -> Result<(), String> {
    if let Some(file) = root_file(paths) {
        let mut list = file.read().map_err(|error| error.to_string())?;
        let now = unix_ms();
        let listed: Vec<ApproverInfo> = list.approvers.iter().map(|entry| entry.info(now)).collect();
        let key = PublicKey::from_openssh(&find(&listed, which)?.key).map_err(|error| error.to_string())?;
        list.change(&key, by_root).map_err(|error| error.to_string())?;
        return file.write(&list).map_err(|error| error.to_string());
    }
    let mut connected = approver.connect().await?;
    let enrolled = approver::keys(&mut connected.client).await?;
    let found = find(&enrolled, which)?;
    let key = PublicKey::from_openssh(&found.key).map_err(|error| error.to_string())?;
    let blob = key.to_bytes().map_err(|error| error.to_string())?;
    let mut change = key_change(&connected, action, &blob, &found.name)?;
    with(&mut change);
    let by = signing_key(&approver, approver.choice.key.clone(), &enrolled).await?;
    submit(&mut connected, &change, by).await
}

fn find<'k>(keys: &'k [ApproverInfo], which: &str) -> Result<&'k ApproverInfo, String> {
    let mut found =
        keys.iter().filter(|key| key.revoked.is_none() && (key.name == which || key.fingerprint == which));
    found.next().ok_or_else(|| {
        format!("no such key: {}\nhint: `outpost approvals keys` lists all keys", printable(which))
    })
}
