//! The connection to the daemon, made again as often as it is lost.

use super::app::{News, Order};
use crate::cli::approver::{Approver, Connected, unexpected};
use outpost_approvals::Error;
use outpost_approvals::wire::{Answer, Request};
use std::time::Duration;
use tokio::sync::mpsc;

/// Between two attempts: at first, and at last.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What may wait on either side.
const MESSAGES_MAX: usize = 64;

pub(super) struct Link {
    pub(super) orders: mpsc::Sender<Order>,
    pub(super) news: mpsc::Receiver<News>,
}

impl Link {
    /// Begins with a connection that is there.
    pub(super) fn begin(approver: Approver, connected: Connected) -> Link {
        let (sender, orders) = mpsc::channel(MESSAGES_MAX);
        let (tell, news) = mpsc::channel(MESSAGES_MAX);
        tokio::spawn(Keeper { approver, orders, tell }.keep(connected));
        Link { orders: sender, news }
    }
}

struct Keeper {
    approver: Approver,
    orders: mpsc::Receiver<Order>,
    tell: mpsc::Sender<News>,
}

/// Nobody listens any more.
struct Alone;

impl Keeper {
    /// Until nobody wants it any more.
    async fn keep(mut self, connected: Connected) {
        let mut connected = connected;
        while let Ok(why) = self.converse(connected).await {
            if self.tell.send(News::Lost { why }).await.is_err() {
                return;
            }
            connected = match self.connect_again().await {
                Ok(again) => again,
                Err(why) => {
                    let _alone = self.tell.send(News::Ended { why }).await;
                    return;
                }
            };
            // What was decided about what was there before is not decided about what is there now.
            while self.orders.try_recv().is_ok() {}
        }
    }

    /// Why the connection is lost.
    async fn converse(&mut self, mut connected: Connected) -> Result<String, Alone> {
        let name = connected.hello.name.clone();
        let questions = match connected.client.ask(&Request::Watch).await {
            Ok(Answer::Questions { questions, .. }) => questions,
            Ok(other) => return Ok(unexpected(&other)),
            Err(error) => return Ok(error.to_string()),
        };
        self.tell(News::Connected { name, questions }).await?;
        loop {
            tokio::select! {
                order = self.orders.recv() => {
                    let done = match order.ok_or(Alone)? {
                        Order::Ask(request) => connected.client.ask(&request).await.map(Some),
                        // How it ended is an event.
                        Order::Decide { question, decision } => {
                            self.approver.decide(&mut connected, &question, decision).await.map(|()| None)
                        }
                    };
                    match done {
                        Ok(Some(answer)) => self.tell(News::Answered(answer)).await?,
                        Ok(None) => {}
                        Err(error @ (Error::Refused(_) | Error::Key(_) | Error::File { .. })) => {
                            self.tell(News::Refused { why: error.to_string() }).await?;
                        }
                        Err(error) => return Ok(error.to_string()),
                    }
                }
                event = connected.client.event() => match event {
                    Ok(event) => self.tell(News::Event(event)).await?,
                    Err(error) => return Ok(error.to_string()),
                },
            }
        }
    }

    async fn tell(&self, news: News) -> Result<(), Alone> {
        self.tell.send(news).await.map_err(|_| Alone)
    }

    /// A daemon that is away comes again; one that does not want us any more stays so.
    async fn connect_again(&self) -> Result<Connected, String> {
        let mut pause = PAUSE;
        loop {
            match self.approver.try_connect().await {
                Ok(connected) => return Ok(connected),
                Err(Error::Refused(why) | Error::Key(why)) => return Err(why),
                Err(_) => tokio::time::sleep(pause).await,
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}
