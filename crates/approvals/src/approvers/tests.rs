//! Which keys may change the list of approvers, and which lists are rejected after a restart.

use super::*;
use crate::kit::Fixture;
use crate::signing::Signer;

#[tokio::test]
async fn a_key_changes_only_keys_within_its_scope() {
    let fixture = Fixture::new().await;
    let [limited, other, unknown] = [(); 3].map(|()| Signer::random().unwrap());
    let unsigned = fixture.change(KeyAction::Enroll, &unknown, &unknown, |_| {}).await.unwrap_err();
    assert!(unsigned.to_string().contains("is not enrolled as an approver"), "{unsigned}");
    let for_alice = |change: &mut KeyChange| {
        change.root = false;
        change.users = vec!["alice".into()];
    };
    fixture.change(KeyAction::Enroll, &limited, &fixture.key, for_alice).await.unwrap();
    for with in [
        (|change| change.root = false) as fn(&mut KeyChange),
        |change| change.users = vec!["alice".into()],
        |change| {
            change.root = false;
            change.users = vec!["alice".into(), "bob".into()];
        },
    ] {
        let refused =
            fixture.change(KeyAction::Enroll, &other, &limited, with).await.unwrap_err().to_string();
        assert!(refused.contains("is smaller than"), "{refused}");
    }
    let refused = fixture.change(KeyAction::Revoke, &fixture.key, &limited, |_| {}).await.unwrap_err();
    assert!(refused.to_string().contains("is smaller than"), "{refused}");
    fixture.change(KeyAction::Enroll, &other, &limited, for_alice).await.unwrap();
    let again = fixture.change(KeyAction::Enroll, &other, &fixture.key, |_| {}).await.unwrap_err();
    assert!(again.to_string().contains("enrolled already"), "{again}");
    fixture.change(KeyAction::Revoke, &limited, &fixture.key, |_| {}).await.unwrap();
    let revoked = fixture.change(KeyAction::Revoke, &other, &limited, |_| {}).await.unwrap_err();
    assert!(revoked.to_string().contains("is revoked"), "{revoked}");
}

#[tokio::test]
async fn an_edited_list_is_rejected() {
    let fixture = Fixture::new().await;
    let second = Signer::random().unwrap();
    fixture.change(KeyAction::Enroll, &second, &fixture.key, |_| {}).await.unwrap();
    let (dir, host) =
        (fixture.dir.path().join("ledger"), fixture.approvals.verifier().host().blob().to_vec());
    assert_eq!(SignedList::open(&dir, &host).unwrap().list.approvers.len(), 2);
    let path = dir.join("approvers.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    for edited in [
        lines[1].to_owned(),
        [lines[0], lines[0]].join("\n"),
        text.replace("U1NIU0lH", "U1NIU0lI"),
        "{}".into(),
    ] {
        std::fs::write(&path, &edited).unwrap();
        assert!(SignedList::open(&dir, &host).is_err(), "{edited}");
    }
    std::fs::write(&path, &text).unwrap();
    assert!(SignedList::open(&dir, b"another host").is_err());
}

#[test]
fn root_file_round_trips_and_errors_are_reported() {
    if outpost_sys::process::effective_uid() != 0 {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = RootFile::in_dir(dir.path());
    assert_eq!(file.read().unwrap(), ApproverList::default());
    let key = PublicKey::from(Signer::random().unwrap().key().key_data().clone());
    let approver = Approver {
        key,
        name: "laptop".into(),
        root: true,
        users: vec!["alice".into()],
        hosts: Vec::new(),
        not_after_ms: 1_800_000_000_000,
        revoked_ms: None,
    };
    std::fs::write(file.path(), "trusted_users = [\"root\"]\n").unwrap();
    let list = ApproverList { approvers: vec![approver], trusted_uids: vec![0], viewer_uids: Vec::new() };
    file.write(&list).unwrap();
    assert_eq!(file.read().unwrap(), list);
    let text = std::fs::read_to_string(file.path()).unwrap();
    for (wrong, why) in [
        (text.replace("root = true", "roott = true"), "roott"),
        (text.replace("ssh-ed25519 ", "ssh-ed25519 x"), "key"),
        (text.replace("2027", "x2027"), "RFC 3339"),
        (text.replace("\"root\"", "\"no-such-user\""), "no-such-user"),
        (format!("{text}\n{}", &text[text.find("[[approver]]").unwrap()..]), "enrolled already"),
    ] {
        std::fs::write(file.path(), &wrong).unwrap();
        let error = file.read().unwrap_err().to_string();
        assert!(error.contains(why) && error.contains("approvers.toml"), "{why}: {error}\n{wrong}");
    }
}
