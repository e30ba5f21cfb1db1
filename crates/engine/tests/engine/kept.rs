//! Descriptors that the keeper holds for later workers.

use crate::support::within;
use outpost_engine::{Config, Engine, Lifecycle};
use outpost_keeper::{Event, MESSAGE_BYTES_MAX, Request};
use outpost_sys::message;

/// The caller may record the number and be killed.
#[tokio::test]
async fn the_keeper_was_sent_a_kept_descriptor_before_the_reply() {
    let dir = tempfile::tempdir().unwrap();
    let (link, keeper) = message::pair().unwrap();
    let receive = || {
        let (mut bytes, mut fds) = ([0; MESSAGE_BYTES_MAX], Vec::new());
        let len = message::receive(&keeper, &mut bytes, &mut fds).unwrap().unwrap();
        (Request::decode(&bytes[..len]).unwrap(), fds.len())
    };
    message::send(&keeper, &Event::TableEnd.encode(), &[]).unwrap();
    let started = Engine::start(Config::new(dir.path()), link, Lifecycle::Embedded, |_, _| ());
    let (engine, _) = started.unwrap();
    assert!(matches!(receive(), (Request::Hello { .. }, 0)));
    for _ in 0..500 {
        let null = std::fs::File::open("/dev/null").unwrap();
        let number = within("keeping", engine.keep(7, null.into())).await.unwrap();
        assert_eq!(receive(), (Request::Hold { slot: number, role: 7 }, 1));
        engine.drop_kept(number).await.unwrap();
        engine.hold(8, std::fs::File::open("/dev/null").unwrap().into()).await.unwrap();
        assert_eq!(receive(), (Request::Forget { slot: number }, 0));
        assert!(matches!(receive(), (Request::Hold { role: 8, .. }, 1)));
    }
}
