//! `outpost approvals enroll`, `keys`, `rename`, `expire`, `revoke-key`: the approvers' keys.

use super::write;
use crate::cli::approver::signer::{ask_passphrase, of_agent, of_file, public_of};
use crate::cli::approver::{self, Approver, Connected, unexpected};
use crate::console::printable;
use crate::paths::Paths;
use clap::Args;
use jiff::Timestamp;
use outpost_approvals::approvers::{Approver as Entry, Listed, RootFile};
use outpost_approvals::signing::{KeyAction, KeyChange, KeyFile, PublicKey, Signer, fingerprint};
use outpost_approvals::wire::{Answer, Request};
use outpost_approvals::{Client, unix_ms};
use outpost_sys::limits::effective_uid;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Args)]
pub(super) struct Enroll {
    /// What the key is called in lists and records [default: the user's name and the host's]
    #[arg(long)]
    name: Option<String>,
    /// Make the new key without a passphrase
    #[arg(long)]
    no_passphrase: bool,
    /// The key decides until then: RFC 3339
    #[arg(long, value_name = "TIME")]
    expires: Option<Timestamp>,
    /// The key does not decide what runs as root
    #[arg(long)]
    no_root: bool,
    /// The key decides for this user only; may be given several times
    #[arg(long = "for-user", value_name = "USER")]
    users: Vec<String>,
    /// The key decides on this host only; may be given several times
    #[arg(long = "on-host", value_name = "HOST")]
    hosts: Vec<String>,
    /// The key that signs the enrolment, where there are approvers already [default: approver.key in the state directory,
    /// or an enrolled key in ssh-agent]
    #[arg(long, value_name = "FILE")]
    by: Option<PathBuf>,
}

#[derive(Args)]
pub(super) struct Keys {
    /// As JSON
    #[arg(long, conflicts_with = "allowed_signers")]
    json: bool,
    /// As a file for `ssh-keygen -Y verify` and `outpost audit verify --keys`
    #[arg(long)]
    allowed_signers: bool,
}

#[derive(Args)]
pub(super) struct Rename {
    /// The key's name or fingerprint
    which: String,
    name: String,
}

#[derive(Args)]
pub(super) struct Expire {
    /// The key's name or fingerprint
    which: String,
    /// RFC 3339
    time: Timestamp,
}

#[derive(Args)]
pub(super) struct Revoke {
    /// The key's name or fingerprint
    which: String,
}

/// Root's file, if approvers of this host come from it.
fn root_file(paths: &Paths) -> Option<RootFile> {
    let etc = paths.guard.etc();
    let counts = paths.host.is_none() && (paths.is_guard || std::fs::symlink_metadata(&etc).is_ok());
    counts.then(|| RootFile::in_dir(&etc))
}

pub(super) async fn list(client: &mut Client, options: &Keys) -> Result<(), String> {
    let answer = client.ask(&Request::Keys).await.map_err(|error| error.to_string())?;
    let Answer::Keys { keys, host } = answer else { return Err(unexpected(&answer)) };
    if options.json {
        return write(&crate::cli::as_json(&keys)?);
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

fn row(key: &Listed) -> String {
    let state = match (&key.revoked, &key.expires, key.usable) {
        (Some(since), ..) => format!("revoked {since}"),
        (None, Some(then), true) => format!("until {then}"),
        (None, Some(then), false) => format!("expired {then}"),
        (None, None, _) => "valid".to_owned(),
    };
    let mut scope = if key.root { "root" } else { "own" }.to_owned();
    for (what, names) in [("for", &key.users), ("on", &key.hosts)] {
        if !names.is_empty() {
            scope += &format!(" {what} {}", names.join(","));
        }
    }
    let (name, print) = (printable(&key.name), printable(&key.fingerprint));
    format!("{name:<24} {print:<50} {:<8} {}\n", printable(&scope), printable(&state))
}

/// A key that is to be enrolled: with its private half, or only known.
enum New {
    Signer(Signer),
    Public(PublicKey),
}

impl New {
    fn key(&self) -> &PublicKey {
        match self {
            New::Signer(signer) => signer.key(),
            New::Public(key) => key,
        }
    }
}

pub(super) async fn enroll(paths: &Paths, approver: &Approver, options: Enroll) -> Result<(), String> {
    let name = options.name.clone().unwrap_or_else(default_name);
    outpost_approvals::approvers::check_name(&name)?;
    let root_file = root_file(paths);
    let new = new_key(approver, &options, root_file.is_some()).await?;
    if let Some(file) = root_file {
        return enroll_by_root(&file, &new, &name, &options);
    }
    let mut connected = approver.connect().await?;
    let enrolled = approver::keys(&mut connected.client).await?;
    let blob = new.key().to_bytes().map_err(|error| error.to_string())?;
    let old_secret = connected.hello.old_secret;
    let mut change = change_of(&connected, KeyAction::Enroll, &blob, &name)?;
    change.root = !options.no_root;
    (change.users, change.hosts) = (options.users, options.hosts);
    change.not_after_ms = options.expires.map_or(0, milliseconds);
    let print = fingerprint(new.key());
    let by = match (enrolled.is_empty(), new) {
        (true, New::Signer(signer)) => signer,
        (true, New::Public(_)) => {
            return Err("the first key signs its own enrolment\nhint: give its private half with --key, or --ssh-agent".into());
        }
        (false, _) if enrolled.iter().any(|listed| listed.fingerprint == print) => {
            return Err(format!("the key {print} is enrolled already; `outpost approvals keys` lists all"));
        }
        (false, _) => earlier_key(approver, options.by, &enrolled).await?,
    };
    submit(&mut connected, &change, by).await?;
    if old_secret && enrolled.is_empty() {
        errln!("The approver's secret of before is removed: decisions are signed with this key from now on.");
    }
    if enrolled.is_empty() {
        errln!(
            "This is the first key of this daemon: it was taken as it came, and the audit chain records that."
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

/// The key that the command line names; otherwise the own one, which is made if it is not there.
async fn new_key(approver: &Approver, options: &Enroll, public_suffices: bool) -> Result<New, String> {
    let choice = &approver.choice;
    if let Some(print) = &choice.ssh_agent {
        return of_agent(print, &|_| true).map(New::Signer);
    }
    let file = choice.key.as_deref().unwrap_or(&choice.default_key);
    if let Some(key) = public_of(file).filter(|_| public_suffices || options.by.is_some()) {
        return Ok(New::Public(key));
    }
    if file.exists() {
        if public_suffices {
            let key = KeyFile::open(file).map_err(|error| error.to_string())?;
            return Ok(New::Public(key.public().clone()));
        }
        return of_file(file).await.map(New::Signer);
    }
    if choice.key.is_some() {
        return Err(format!("there is no key {}", file.display()));
    }
    make_key(file, options.no_passphrase).await.map(New::Signer)
}

/// A new Ed25519 key in a file.
async fn make_key(file: &Path, bare: bool) -> Result<Signer, String> {
    let passphrase = match bare {
        true => zeroize::Zeroizing::default(),
        false if !std::io::stdin().is_terminal() => {
            return Err("a new key gets a passphrase, and there is no terminal to ask for it\n\
                        hint: --no-passphrase makes one without, --ssh-agent uses one of ssh-agent"
                .into());
        }
        false => {
            let typed = ask_passphrase("Passphrase for the new key:").await?;
            let again = ask_passphrase("The same passphrase again:").await?;
            if typed.is_empty() || typed != again {
                return Err(
                    "the passphrases are empty or differ\nhint: --no-passphrase makes a key without".into()
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
        errln!("Made the key {}: keep it where no agent of this user can read it.", file.display());
        Ok::<Signer, outpost_approvals::Error>(signer)
    };
    let made = tokio::task::spawn_blocking(make).await.map_err(|error| error.to_string())?;
    made.map_err(|error| error.to_string())
}

/// A key that is enrolled already, to sign a change with.
async fn earlier_key(
    approver: &Approver,
    by: Option<PathBuf>,
    enrolled: &[Listed],
) -> Result<Signer, String> {
    let is_enrolled = |key: &PublicKey| {
        let print = fingerprint(key);
        enrolled.iter().any(|listed| listed.usable && listed.fingerprint == print)
    };
    if let Some(file) = by {
        return of_file(&file).await;
    }
    let own = &approver.choice.default_key;
    let own_key = KeyFile::open(own).ok().filter(|file| is_enrolled(file.public()));
    match own_key {
        Some(_) => of_file(own).await,
        None => of_agent("", &is_enrolled).map_err(|why| {
            format!("a key that is enrolled already has to sign this: {why}\nhint: name one with --by FILE")
        }),
    }
}

fn change_of(connected: &Connected, action: KeyAction, key: &[u8], name: &str) -> Result<KeyChange, String> {
    let host = connected.hello.host.to_bytes().map_err(|error| error.to_string())?;
    Ok(KeyChange::new(action, &host, connected.hello.head, key, name))
}

async fn submit(connected: &mut Connected, change: &KeyChange, by: Signer) -> Result<(), String> {
    let signed = outpost_approvals::sign(Arc::new(by), change.encode()).await;
    let signed = signed.map_err(|error| error.to_string())?;
    let request = Request::ChangeKey { statement: signed.statement, signature: signed.signature };
    match connected.client.ask(&request).await.map_err(|error| error.to_string())? {
        Answer::KeyChanged { .. } => Ok(()),
        other => Err(unexpected(&other)),
    }
}

/// Root's file: no key has to sign, since only root can write it.
fn enroll_by_root(file: &RootFile, new: &New, name: &str, options: &Enroll) -> Result<(), String> {
    let bare = PublicKey::from(new.key().key_data().clone());
    if effective_uid() != 0 {
        let key = bare.to_openssh().map_err(|error| error.to_string())?;
        return Err(format!(
            "the approvers of this host are in {}, which root changes\n\
             hint: as root, save this line in a file and `outpost approvals enroll --name {name:?} --key FILE`:\n{key}",
            file.path().display()
        ));
    }
    let mut list = file.read()?;
    list.enroll(Entry {
        key: bare,
        name: name.to_owned(),
        root: !options.no_root,
        users: options.users.clone(),
        hosts: options.hosts.clone(),
        not_after_ms: options.expires.map_or(0, milliseconds),
        revoked_ms: None,
    })?;
    file.write(&list)?;
    let old = file.path().with_file_name("approver.sha256");
    if std::fs::remove_file(&old).is_ok() {
        errln!("{} of the time of secrets is removed.", old.display());
    }
    write(&format!("enrolled {name} {}\n", fingerprint(new.key())))
}

pub(super) async fn rename(paths: &Paths, approver: Approver, options: Rename) -> Result<(), String> {
    let name = options.name.clone();
    let by_root = |entry: &mut Entry| entry.name = name;
    let change = |change: &mut KeyChange| change.name = options.name.clone();
    alter(paths, approver, &options.which, KeyAction::Rename, by_root, change).await?;
    write(&format!("renamed {} to {}\n", printable(&options.which), printable(&options.name)))
}

pub(super) async fn expire(paths: &Paths, approver: Approver, options: Expire) -> Result<(), String> {
    let then = milliseconds(options.time);
    let by_root = |entry: &mut Entry| entry.not_after_ms = then;
    let change = |change: &mut KeyChange| change.not_after_ms = then;
    alter(paths, approver, &options.which, KeyAction::Expire, by_root, change).await?;
    write(&format!("{} ends at {}\n", printable(&options.which), options.time))
}

pub(super) async fn revoke(paths: &Paths, approver: Approver, options: Revoke) -> Result<(), String> {
    let by_root = |entry: &mut Entry| entry.revoked_ms = Some(unix_ms());
    alter(paths, approver, &options.which, KeyAction::Revoke, by_root, |_| {}).await?;
    write(&format!("revoked {}\n", printable(&options.which)))
}

/// Changes one key: in root's file, or by a statement that an enrolled key signs.
async fn alter(
    paths: &Paths,
    approver: Approver,
    which: &str,
    action: KeyAction,
    by_root: impl FnOnce(&mut Entry),
    with: impl FnOnce(&mut KeyChange),
) -> Result<(), String> {
    if let Some(file) = root_file(paths) {
        let mut list = file.read()?;
        let now = unix_ms();
        let listed: Vec<Listed> = list.approvers.iter().map(|entry| entry.listed(now)).collect();
        let key = PublicKey::from_openssh(&find(&listed, which)?.key).map_err(|error| error.to_string())?;
        list.change(&key, by_root)?;
        return file.write(&list);
    }
    let mut connected = approver.connect().await?;
    let enrolled = approver::keys(&mut connected.client).await?;
    let found = find(&enrolled, which)?;
    let key = PublicKey::from_openssh(&found.key).map_err(|error| error.to_string())?;
    let blob = key.to_bytes().map_err(|error| error.to_string())?;
    let mut change = change_of(&connected, action, &blob, &found.name)?;
    with(&mut change);
    let by = earlier_key(&approver, approver.choice.key.clone(), &enrolled).await?;
    submit(&mut connected, &change, by).await
}

fn find<'k>(keys: &'k [Listed], which: &str) -> Result<&'k Listed, String> {
    let mut found =
        keys.iter().filter(|key| key.revoked.is_none() && (key.name == which || key.fingerprint == which));
    found
        .next()
        .ok_or_else(|| format!("there is no key {}; `outpost approvals keys` lists all", printable(which)))
}
