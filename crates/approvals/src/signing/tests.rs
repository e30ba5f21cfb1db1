//! Statements and signatures, verified by this crate and by OpenSSH.

use super::ssh_agent::Agent;
use super::sshsig::envelope;
use super::*;
use crate::question::{Decision, Line, Question, Remember, Section};
use ::signature::Signer as _;
use outpost_ledger::audit::Head;
use sha2::{Digest, Sha256};
use ssh_encoding::Encode;
use ssh_key::private::Ed25519Keypair;
use ssh_key::public::{KeyData, SkEcdsaSha2NistP256, SkEd25519};
use ssh_key::rand_core::OsRng;
use ssh_key::{Algorithm, EcdsaCurve, HashAlg, LineEnding, PrivateKey, SshSig};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

fn question() -> Question {
    let line = |name: &str, value: &str| Line { name: name.into(), value: value.into() };
    Question {
        id: "8f14e45f-ceea-467f-a0f6-1d2c3b4a5968".into(),
        face: "broker".into(),
        digest: "ab".repeat(32),
        title: "systemctl restart nginx".into(),
        sections: vec![
            Section { heading: "Command".into(), lines: vec![line("0", "systemctl")], claimed: false },
            Section {
                heading: "Claimed by the client".into(),
                lines: vec![line("reason", "x")],
                claimed: true,
            },
        ],
        warnings: vec!["this command can use your SSH keys while it runs".into()],
        privileged: true,
        rememberable: true,
        uid: Some(1000),
        asked_ms: 1_800_000_000_000,
        deadline_ms: 1_800_000_060_000,
    }
}

fn statement() -> Statement {
    Statement {
        host: PrivateKey::from(Ed25519Keypair::from_seed(&[1; 32])).public_key().to_bytes().unwrap(),
        question: question().id,
        digest: question().digest,
        shown: shown_hash(&question()),
        decision: Decision { allow: true, note: String::new(), remember: Some(Remember::Times(3)) },
        head: Head { seq: 42, hash: [7; 32] },
        issued_ms: 1_800_000_010_000,
        expires_ms: 1_800_000_610_000,
    }
}

#[test]
fn a_statement_round_trips_and_other_bytes_are_rejected() {
    let statement = statement();
    let bytes = statement.encode();
    assert_eq!(Statement::decode(&bytes).unwrap(), statement);
    for cut in 0..bytes.len() {
        assert!(Statement::decode(&bytes[..cut]).is_err(), "cut at {cut}");
    }
    let longer = [bytes.as_slice(), &[0]].concat();
    assert!(Statement::decode(&longer).unwrap_err().to_string().contains("after its last field"));
    let version = b"outpost-decision-statement".len() + 3;
    let mut newer = bytes.clone();
    newer[version] = 2;
    assert!(Statement::decode(&newer).unwrap_err().to_string().contains("unknown version 2"));
    for (at, _) in bytes.iter().enumerate() {
        let mut other = bytes.clone();
        other[at] ^= 1;
        // If the modified bytes decode, they encode another statement.
        if let Ok(read) = Statement::decode(&other) {
            assert_ne!(read, statement);
            assert_eq!(read.encode(), other);
        }
    }
}

#[test]
fn a_key_change_round_trips_and_is_not_a_decision() {
    let mut change = KeyChange::new(KeyAction::Enroll, b"host", statement().head, b"key", "laptop");
    change.users = vec!["alice".into()];
    change.not_after_ms = 5;
    let bytes = change.encode();
    assert_eq!(KeyChange::decode(&bytes).unwrap(), change);
    assert!(Statement::decode(&bytes).is_err() && KeyChange::decode(&statement().encode()).is_err());
    for cut in 0..bytes.len() {
        assert!(KeyChange::decode(&bytes[..cut]).is_err(), "cut at {cut}");
    }
}

#[test]
fn every_displayed_field_changes_the_shown_hash() {
    let before = shown_hash(&question());
    let changes: [fn(&mut Question); 11] = [
        |question| question.id.push('x'),
        |question| question.face.push('x'),
        |question| question.digest.push('x'),
        |question| question.title.push('x'),
        |question| question.privileged = false,
        |question| question.rememberable = false,
        |question| question.uid = None,
        |question| question.warnings.clear(),
        |question| question.sections[0].heading.push('x'),
        |question| question.sections[1].claimed = false,
        |question| question.sections[1].lines[0].value.push('x'),
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut other = question();
        change(&mut other);
        assert_ne!(shown_hash(&other), before, "change {number}");
    }
    let later = Question { deadline_ms: 0, ..question() };
    assert_eq!(shown_hash(&later), before, "the deadline is not part of the hash");
}

/// Signs as a hardware key does.
fn sign_as_hardware(key: &PrivateKey, flags: u8, message: &[u8]) -> (KeyData, Vec<u8>) {
    let (public, name) = match key.public_key().key_data() {
        KeyData::Ed25519(public) => {
            (KeyData::SkEd25519(SkEd25519::new(*public, "ssh:")), "sk-ssh-ed25519@openssh.com")
        }
        KeyData::Ecdsa(ssh_key::public::EcdsaPublicKey::NistP256(point)) => (
            KeyData::SkEcdsaSha2NistP256(SkEcdsaSha2NistP256::new(*point, "ssh:")),
            "sk-ecdsa-sha2-nistp256@openssh.com",
        ),
        other => panic!("{other:?}"),
    };
    let counter = 9u32.to_be_bytes();
    let data = SshSig::signed_data(NAMESPACE, HashAlg::Sha512, message).unwrap();
    let mut signed = Sha256::digest(b"ssh:").to_vec();
    signed.push(flags);
    signed.extend_from_slice(&counter);
    signed.extend_from_slice(&Sha256::digest(&data));
    let made = key.key_data().try_sign(&signed).unwrap();
    let mut bare = Vec::new();
    name.as_bytes().encode(&mut bare).unwrap();
    made.as_bytes().encode(&mut bare).unwrap();
    bare.push(flags);
    bare.extend_from_slice(&counter);
    let blob = PublicKey::from(public.clone()).to_bytes().unwrap();
    (public, envelope(NAMESPACE, &blob, &bare))
}

fn armored(signature: &[u8]) -> String {
    let text = base64(signature);
    let lines: Vec<&str> =
        text.as_bytes().chunks(70).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN SSH SIGNATURE-----\n{}\n-----END SSH SIGNATURE-----\n", lines.join("\n"))
}

fn ssh_keygen(arguments: &[&str], dir: &Path, input: &[u8]) -> std::process::Output {
    let mut child = Command::new("ssh-keygen")
        .args(arguments)
        .current_dir(dir)
        .env_remove("SSH_AUTH_SOCK")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

/// Whether OpenSSH verifies the signature with this key.
fn openssh_verifies(key: &PublicKey, message: &[u8], signature: &[u8]) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let signer = format!("alice {}\n", key.to_openssh().unwrap());
    std::fs::write(dir.path().join("allowed"), signer).unwrap();
    std::fs::write(dir.path().join("signature"), armored(signature)).unwrap();
    let arguments = ["-Y", "verify", "-f", "allowed", "-I", "alice", "-n", NAMESPACE, "-s", "signature"];
    ssh_keygen(&arguments, dir.path(), message).status.success()
}

#[test]
fn signatures_of_key_files_and_ssh_keygen_are_interchangeable() {
    let dir = tempfile::tempdir().unwrap();
    let message = statement().encode();
    for passphrase in ["", "correct horse"] {
        let path = dir.path().join(format!("key{}", passphrase.len()));
        KeyFile::create(&path, passphrase, "test").unwrap();
        assert!(KeyFile::create(&path, "", "test").is_err(), "a key is never replaced");
        let file = KeyFile::open(&path).unwrap();
        assert_eq!(file.is_encrypted(), !passphrase.is_empty());
        if file.is_encrypted() {
            assert!(file.unlock("wrong").is_err());
        }
        let signer = file.unlock(passphrase).unwrap();
        let signature = signer.sign(NAMESPACE, &message).unwrap();
        assert_eq!(verify(NAMESPACE, &message, &signature).unwrap().key_data(), signer.key().key_data());
        assert!(openssh_verifies(signer.key(), &message, &signature));
        // OpenSSH can read the key file.
        std::fs::write(dir.path().join("message"), &message).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let printed = ssh_keygen(&["-y", "-P", passphrase, "-f", name], dir.path(), b"");
        assert!(String::from_utf8_lossy(&printed.stdout).starts_with("ssh-ed25519 "), "{printed:?}");
    }
    let signed = ssh_keygen(&["-q", "-Y", "sign", "-n", NAMESPACE, "-f", "key0"], dir.path(), &message);
    let text = String::from_utf8(signed.stdout).unwrap();
    let body: String = text.lines().filter(|line| !line.starts_with("-----")).collect();
    verify(NAMESPACE, &message, &from_base64(&body).unwrap()).unwrap();
    // The same through `Signer::SshKeygen`.
    let key = KeyFile::open(&dir.path().join("key0")).unwrap();
    let signer = Signer::SshKeygen { file: dir.path().join("key0"), key: key.public().clone() };
    verify(NAMESPACE, &message, &signer.sign(NAMESPACE, &message).unwrap()).unwrap();
}

#[test]
fn a_signature_is_bound_to_message_and_namespace() {
    let signer = Signer::random().unwrap();
    let message = statement().encode();
    let signature = signer.sign(NAMESPACE, &message).unwrap();
    assert!(
        verify(HOST_NAMESPACE, &message, &signature)
            .unwrap_err()
            .to_string()
            .contains("not for outpost-host")
    );
    let mut other = message.clone();
    *other.last_mut().unwrap() ^= 1;
    assert!(verify(NAMESPACE, &other, &signature).is_err());
    assert!(verify(NAMESPACE, &message, &[signature.as_slice(), b"x"].concat()).is_err());
    for at in 0..signature.len() {
        let mut changed = signature.clone();
        changed[at] ^= 1;
        let by = verify(NAMESPACE, &message, &changed);
        assert!(by.is_err(), "byte {at} can be changed");
    }
}

#[test]
fn hardware_signatures_need_a_touch() {
    let message = statement().encode();
    let p256 = Algorithm::Ecdsa { curve: EcdsaCurve::NistP256 };
    for algorithm in [Algorithm::Ed25519, p256] {
        let key = PrivateKey::random(&mut OsRng, algorithm).unwrap();
        let (public, signature) = sign_as_hardware(&key, 1, &message);
        assert_eq!(*verify(NAMESPACE, &message, &signature).unwrap().key_data(), public);
        assert!(openssh_verifies(&PublicKey::from(public), &message, &signature));
        let (_, untouched) = sign_as_hardware(&key, 0, &message);
        assert!(verify(NAMESPACE, &message, &untouched).unwrap_err().to_string().contains("not touched"));
    }
}

/// A running ssh-agent with the given keys.
struct SshAgent {
    child: Child,
    dir: tempfile::TempDir,
}

impl SshAgent {
    fn start(keys: &[&PrivateKey]) -> SshAgent {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent");
        let mut child =
            Command::new("ssh-agent").args(["-D", "-a"]).arg(&socket).stdout(Stdio::piped()).spawn().unwrap();
        // The agent prints its address after it has started to listen.
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.as_mut().unwrap()), &mut line)
            .unwrap();
        for (number, key) in keys.iter().enumerate() {
            let path = dir.path().join(format!("key{number}"));
            super::signer::write_new(&path, key).unwrap();
            let added = Command::new("ssh-add").env("SSH_AUTH_SOCK", &socket).arg(&path).output().unwrap();
            assert!(added.status.success(), "{added:?}");
        }
        SshAgent { child, dir }
    }
}

impl Drop for SshAgent {
    fn drop(&mut self) {
        let _exited = self.child.kill();
        let _reaped = self.child.wait();
    }
}

#[test]
fn ssh_agent_signatures_verify_here_and_in_openssh() {
    let p256 = Algorithm::Ecdsa { curve: EcdsaCurve::NistP256 };
    let keys = [Algorithm::Ed25519, p256].map(|kind| PrivateKey::random(&mut OsRng, kind).unwrap());
    let real = SshAgent::start(&[&keys[0], &keys[1]]);
    let agent = Agent::new(&real.dir.path().join("agent"));
    let held = agent.keys().unwrap();
    assert_eq!(held.len(), 2);
    let message = statement().encode();
    for key in &held {
        let signer = Signer::Agent { agent: agent.clone(), key: key.clone() };
        let signature = signer.sign(NAMESPACE, &message).unwrap();
        assert_eq!(verify(NAMESPACE, &message, &signature).unwrap().key_data(), key.key_data());
        assert!(openssh_verifies(key, &message, &signature));
    }
    let unknown = Signer::random().unwrap();
    assert!(agent.sign(unknown.key(), NAMESPACE, &message).is_err(), "the agent does not have this key");
}

/// The recorded test vectors of docs/approvals.md.
#[derive(serde::Serialize, serde::Deserialize)]
struct Vector {
    key: String,
    statement: String,
    signature: String,
}

/// Set `OUTPOST_WRITE_VECTORS=1` to record them again.
#[test]
fn recorded_vectors_verify_here_and_in_openssh() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/signing/vectors.json");
    let message = statement().encode();
    if std::env::var_os("OUTPOST_WRITE_VECTORS").is_some() {
        let own = PrivateKey::from(Ed25519Keypair::from_seed(&[2; 32]));
        let p256 = Algorithm::Ecdsa { curve: EcdsaCurve::NistP256 };
        let mut vectors = vec![(
            own.public_key().clone(),
            super::signer::sign_with_key(&own, NAMESPACE, &message).unwrap(),
        )];
        for key in [own, PrivateKey::random(&mut OsRng, p256).unwrap()] {
            let (public, signature) = sign_as_hardware(&key, 1, &message);
            vectors.push((PublicKey::from(public), signature));
        }
        let vectors: Vec<Vector> = vectors
            .iter()
            .map(|(key, signature)| Vector {
                key: key.to_openssh().unwrap(),
                statement: base64(&message),
                signature: base64(signature),
            })
            .collect();
        std::fs::write(&path, serde_json::to_string_pretty(&vectors).unwrap() + "\n").unwrap();
    }
    let vectors: Vec<Vector> = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let kinds: Vec<&str> = vectors.iter().map(|vector| vector.key.split(' ').next().unwrap()).collect();
    assert_eq!(kinds, ["ssh-ed25519", "sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com"]);
    for vector in vectors {
        let signed = Signed { statement: vector.statement, signature: vector.signature };
        let (recorded, signature) = (signed.statement_bytes().unwrap(), signed.signature_bytes().unwrap());
        assert_eq!(recorded, message, "the layout of statements has changed without a new version");
        let key = PublicKey::from_openssh(&vector.key).unwrap();
        assert_eq!(verify(NAMESPACE, &recorded, &signature).unwrap().key_data(), key.key_data());
        assert!(openssh_verifies(&key, &recorded, &signature));
    }
}

#[test]
fn a_key_file_readable_by_others_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    let key = PrivateKey::from(Ed25519Keypair::from_seed(&[3; 32]));
    std::fs::write(&path, key.to_openssh(LineEnding::LF).unwrap().as_bytes()).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
    assert!(KeyFile::open(&path).err().unwrap().to_string().contains("others can read it"));
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    assert!(KeyFile::open(&path).is_ok());
}

/// End to end: decisions signed by a key file, an ssh-agent and hardware keys, verified by the daemon and by
/// OpenSSH.
#[tokio::test]
async fn decisions_of_every_key_type_are_accepted() {
    use crate::kit::{ALLOW, Fixture, question};
    let fixture = Fixture::new().await;
    let dir = tempfile::tempdir().unwrap();
    let file = KeyFile::create(&dir.path().join("key"), "correct horse", "test").unwrap();
    let p256 = Algorithm::Ecdsa { curve: EcdsaCurve::NistP256 };
    let held = PrivateKey::random(&mut OsRng, p256.clone()).unwrap();
    let real = SshAgent::start(&[&held]);
    let agent = Agent::new(&real.dir.path().join("agent"));
    let of_agent = Signer::Agent { key: agent.keys().unwrap()[0].clone(), agent };
    let hardware = [Algorithm::Ed25519, p256].map(|kind| PrivateKey::random(&mut OsRng, kind).unwrap());
    type Sign<'a> = Box<dyn Fn(&[u8]) -> (PublicKey, Vec<u8>) + 'a>;
    let of_file = file.unlock("correct horse").unwrap();
    let by = |signer: Signer| -> Sign<'_> {
        Box::new(move |message| (signer.key().clone(), signer.sign(NAMESPACE, message).unwrap()))
    };
    let mut signs = vec![by(of_file), by(of_agent)];
    for key in &hardware {
        signs.push(Box::new(|message| {
            let (public, signature) = sign_as_hardware(key, 1, message);
            (PublicKey::from(public), signature)
        }));
    }
    for (number, sign) in signs.iter().enumerate() {
        let (key, _) = sign(b"");
        let blob = key.to_bytes().unwrap();
        let enroll = |change: &mut KeyChange| {
            change.key = blob;
            change.name = format!("key {number}");
        };
        fixture.change(KeyAction::Enroll, &fixture.key, &fixture.key, enroll).await.unwrap();
        let asked = question(&format!("q{number}"));
        let _pending = fixture.ask(&asked, std::time::Duration::from_secs(60)).await;
        let message = fixture.statement(&asked, ALLOW).encode();
        let (_, signature) = sign(&message);
        assert!(openssh_verifies(&key, &message, &signature), "{}", key.algorithm());
        fixture.submit(Signed::new(&message, &signature)).await.unwrap();
    }
    let untouched = question("untouched");
    let _pending = fixture.ask(&untouched, std::time::Duration::from_secs(60)).await;
    let message = fixture.statement(&untouched, ALLOW).encode();
    let (_, signature) = sign_as_hardware(&hardware[0], 0, &message);
    let refused = fixture.submit(Signed::new(&message, &signature)).await.unwrap_err().to_string();
    assert!(refused.contains("not touched"), "{refused}");
}
