//! The connection to the daemon, made again as often as it is lost.

use super::app::News;
use crate::cli::approver::{Approver, Proven, unexpected};
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
    pub(super) requests: mpsc::Sender<Request>,
    pub(super) news: mpsc::Receiver<News>,
}

impl Link {
    /// Begins with a connection that is there.
    pub(super) fn begin(approver: Approver, proven: Proven) -> Link {
        let (requests, orders) = mpsc::channel(MESSAGES_MAX);
        let (tell, news) = mpsc::channel(MESSAGES_MAX);
        tokio::spawn(Keeper { approver, orders, tell }.keep(proven));
        Link { requests, news }
    }
}

struct Keeper {
    approver: Approver,
    orders: mpsc::Receiver<Request>,
    tell: mpsc::Sender<News>,
}

/// Nobody listens any more.
struct Alone;

impl Keeper {
    /// Until nobody wants it any more.
    async fn keep(mut self, proven: Proven) {
        let mut proven = proven;
        while let Ok(why) = self.converse(proven).await {
            if self.tell.send(News::Lost { why }).await.is_err() {
                return;
            }
            proven = match self.connect_again().await {
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
    async fn converse(&mut self, proven: Proven) -> Result<String, Alone> {
        let Proven { mut client, name } = proven;
        let questions = match client.ask(&Request::Watch).await {
            Ok(Answer::Questions { questions, .. }) => questions,
            Ok(other) => return Ok(unexpected(&other)),
            Err(error) => return Ok(error.to_string()),
        };
        self.tell(News::Connected { name, questions }).await?;
        loop {
            tokio::select! {
                order = self.orders.recv() => {
                    let answer = client.ask(&order.ok_or(Alone)?).await;
                    self.tell(match answer {
                        Ok(answer) => News::Answered(answer),
                        Err(Error::Refused(why) | Error::SecretWanted(why)) => News::Refused { why },
                        Err(error) => return Ok(error.to_string()),
                    }).await?;
                }
                event = client.event() => match event {
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
    async fn connect_again(&self) -> Result<Proven, String> {
        let mut pause = PAUSE;
        loop {
            match self.approver.prove_again().await {
                Ok(proven) => return Ok(proven),
                Err(Error::Refused(why) | Error::SecretWanted(why)) => return Err(why),
                Err(_) => tokio::time::sleep(pause).await,
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}
