//! Access to HTTP connections: the kernel identifies the client, or its requests carry a bearer token.

use crate::peers::{Peers, TokenNeeded};
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use std::sync::Arc;
use subtle::ConstantTimeEq;
use tokio::net::TcpStream;

/// Compares in constant time. An empty secret is never valid.
pub fn is_same_secret(given: &[u8], secret: &[u8]) -> bool {
    !given.is_empty() && bool::from(given.ct_eq(secret))
}

type IsValid = dyn Fn(&[u8]) -> bool + Send + Sync;

/// A check of bearer tokens.
#[derive(Clone)]
pub struct TokenCheck {
    is_valid: Arc<IsValid>,
    is_scheme_case_sensitive: bool,
}

impl TokenCheck {
    /// `is_valid` must compare in constant time.
    pub fn new(is_valid: impl Fn(&[u8]) -> bool + Send + Sync + 'static) -> TokenCheck {
        TokenCheck { is_valid: Arc::new(is_valid), is_scheme_case_sensitive: true }
    }

    /// Accepts exactly this token.
    pub fn of(token: Vec<u8>) -> TokenCheck {
        TokenCheck::new(move |given| is_same_secret(given, &token))
    }

    /// Accepts the scheme `Bearer` in any case.
    pub fn ignoring_case(self) -> TokenCheck {
        TokenCheck { is_scheme_case_sensitive: false, ..self }
    }

    fn check(&self, headers: &HeaderMap) -> Result<(), TokenFault> {
        let given = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
        let (scheme, token) = given.split_at_checked(SCHEME.len()).unwrap_or_default();
        let is_bearer = match self.is_scheme_case_sensitive {
            true => scheme == SCHEME,
            false => scheme.eq_ignore_ascii_case(SCHEME),
        };
        match is_bearer {
            true if (self.is_valid)(token) => Ok(()),
            true => Err(TokenFault::Invalid),
            false => Err(TokenFault::Missing),
        }
    }
}

const SCHEME: &[u8] = b"Bearer ";

/// Why the token of a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenFault {
    Missing,
    Invalid,
}

/// A refused request: its fault, and why the client of a loopback port needs a token.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal<'a> {
    pub fault: TokenFault,
    pub reason: Option<&'a TokenNeeded>,
}

/// What the requests of one connection need.
#[derive(Clone)]
pub enum Access {
    /// Nothing: the kernel identified the client, or the socket's permissions are the check.
    Open,
    /// A token, because the client of a loopback port was not admitted for this reason.
    NotAdmitted(TokenCheck, TokenNeeded),
    /// A token from every client.
    Token(TokenCheck),
}

impl Access {
    /// The access of a connection to a loopback port.
    pub async fn of_loopback(stream: &TcpStream, peers: &Peers, tokens: &TokenCheck) -> Access {
        match peers.admit(stream).await {
            Ok(()) => Access::Open,
            Err(reason) => Access::NotAdmitted(tokens.clone(), reason),
        }
    }

    pub fn check(&self, headers: &HeaderMap) -> Result<(), Refusal<'_>> {
        let (tokens, reason) = match self {
            Access::Open => return Ok(()),
            Access::NotAdmitted(tokens, reason) => (tokens, Some(reason)),
            Access::Token(tokens) => (tokens, None),
        };
        tokens.check(headers).map_err(|fault| Refusal { fault, reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_the_whole_rest_of_the_header() {
        let exact = TokenCheck::of(b"sesame".into());
        let any_case = exact.clone().ignoring_case();
        let check = |tokens: &TokenCheck, text: &'static str| {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(text))]);
            Access::Token(tokens.clone()).check(&headers).map_err(|refusal| refusal.fault)
        };
        for (text, expected) in [
            ("Bearer sesame", Ok(())),
            ("Bearer ", Err(TokenFault::Invalid)),
            ("Bearer sesame ", Err(TokenFault::Invalid)),
            ("Bearer  sesame", Err(TokenFault::Invalid)),
            ("Bearer", Err(TokenFault::Missing)),
            ("Basic sesame", Err(TokenFault::Missing)),
            ("sesame", Err(TokenFault::Missing)),
        ] {
            assert_eq!(check(&exact, text), expected, "{text:?}");
            assert_eq!(check(&any_case, text), expected, "{text:?}");
        }
        assert_eq!(check(&exact, "bearer sesame"), Err(TokenFault::Missing));
        assert_eq!(check(&any_case, "bEARER sesame"), Ok(()));
        let (none, reason) = (HeaderMap::new(), TokenNeeded::Root);
        let refused = Refusal { fault: TokenFault::Missing, reason: Some(&reason) };
        assert_eq!(Access::NotAdmitted(exact, reason.clone()).check(&none), Err(refused));
        assert_eq!(Access::Open.check(&none), Ok(()));
        assert_eq!(check(&TokenCheck::of(Vec::new()), "Bearer "), Err(TokenFault::Invalid));
    }
}
