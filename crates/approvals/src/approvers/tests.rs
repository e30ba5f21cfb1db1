//! Which keys may change the list of approvers, and what of it counts after a restart.

use super::*;
use crate::kit::Site;
use crate::signing::Signer;

#[tokio::test]
async fn keys_are_changed_by_keys_of_at_least_their_scope() {
    let site = Site::new().await;
    let [small, other, stranger] = [(); 3].map(|()| Signer::random().unwrap());
    let unsigned = site.change(KeyAction::Enroll, &stranger, &stranger, |_| {}).await.unwrap_err();
    assert!(unsigned.to_string().contains("is not an approver's here"), "{unsigned}");
    let for_alice = |change: &mut KeyChange| {
        change.root = false;
        change.users = vec!["alice".into()];
    };
    site.change(KeyAction::Enroll, &small, &site.key, for_alice).await.unwrap();
    for with in [
        (|change| change.root = false) as fn(&mut KeyChange),
        |change| change.users = vec!["alice".into()],
        |change| {
            change.root = false;
            change.users = vec!["alice".into(), "bob".into()];
        },
    ] {
        let refused = site.change(KeyAction::Enroll, &other, &small, with).await.unwrap_err().to_string();
        assert!(refused.contains("is smaller than"), "{refused}");
    }
    let refused = site.change(KeyAction::Revoke, &site.key, &small, |_| {}).await.unwrap_err();
    assert!(refused.to_string().contains("is smaller than"), "{refused}");
    site.change(KeyAction::Enroll, &other, &small, for_alice).await.unwrap();
    let again = site.change(KeyAction::Enroll, &other, &site.key, |_| {}).await.unwrap_err();
    assert!(again.to_string().contains("enrolled already"), "{again}");
    site.change(KeyAction::Revoke, &small, &site.key, |_| {}).await.unwrap();
    let revoked = site.change(KeyAction::Revoke, &other, &small, |_| {}).await.unwrap_err();
    assert!(revoked.to_string().contains("is revoked"), "{revoked}");
}

#[tokio::test]
async fn a_list_that_was_edited_names_no_approver() {
    let site = Site::new().await;
    let second = Signer::random().unwrap();
    site.change(KeyAction::Enroll, &second, &site.key, |_| {}).await.unwrap();
    let (dir, host) = (site.dir.path().join("books"), site.approvals.trust().host().blob().to_vec());
    assert_eq!(OwnList::open(&dir, &host).unwrap().list.approvers.len(), 2);
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
        assert!(OwnList::open(&dir, &host).is_err(), "{edited}");
    }
    std::fs::write(&path, &text).unwrap();
    assert!(OwnList::open(&dir, b"another host").is_err());
}

#[test]
fn roots_file_is_read_back_and_mistakes_are_reported() {
    if outpost_sys::limits::effective_uid() != 0 {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = RootFile::in_dir(dir.path());
    assert_eq!(file.read().unwrap(), List::default());
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
    let list = List { approvers: vec![approver], trusted: vec![0], viewers: Vec::new() };
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
        let told = file.read().unwrap_err();
        assert!(told.contains(why) && told.contains("approvers.toml"), "{why}: {told}\n{wrong}");
    }
}
