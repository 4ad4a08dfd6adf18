//! Signed requests, as botocore signed them.

use postbox_server::SqsError;
use postbox_server::auth::*;
use postbox_server::wire::HttpRequest;

pub(crate) const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

/// 2015-08-30 12:36:00, at which all recorded signatures were made.
pub(crate) const NOW: u64 = 1_440_938_160;

/// A request as it was signed.
#[derive(Clone)]
pub(crate) struct Recorded {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) query: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Recorded {
    pub(crate) fn new(
        method: &'static str,
        path: &'static str,
        query: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Self {
        let headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Recorded { method, path, query: query.into(), headers, body: body.into() }
    }

    pub(crate) fn with<T>(&self, use_it: impl FnOnce(&HttpRequest<'_>) -> T) -> T {
        let headers: Vec<(&str, &str)> =
            self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let body = self.body.as_bytes();
        use_it(&HttpRequest { method: self.method, path: self.path, query: &self.query, headers: &headers, body })
    }

    pub(crate) fn verify_at(&self, now: u64) -> Result<(String, String), SqsError> {
        let keys = keys();
        self.with(|http| verify(http, &keys, now).map(|verified| (verified.key.id.clone(), verified.region)))
    }

    pub(crate) fn set_header(&mut self, name: &str, value: &str) {
        self.headers.retain(|(found, _)| !found.eq_ignore_ascii_case(name));
        if !value.is_empty() {
            self.headers.push((name.into(), value.into()));
        }
    }

    pub(crate) fn header(&self, name: &str) -> String {
        self.headers.iter().find(|(found, _)| found == name).unwrap().1.clone()
    }
}

pub(crate) fn keys() -> AccessKeys {
    let mut with_token = AccessKey::new("AKIDTOKEN", "another/Secret+Text");
    with_token.session_token = Some(Secret::new("TOKEN+with/signs=="));
    AccessKeys::new([AccessKey::new("AKIDEXAMPLE", SECRET), with_token])
}

pub(crate) fn authorization(key: &str, headers: &str, signature: &str) -> String {
    let scope = "20150830/eu-west-1/sqs/aws4_request";
    format!("AWS4-HMAC-SHA256 Credential={key}/{scope}, SignedHeaders={headers}, Signature={signature}")
}

pub(crate) const DATE: (&str, &str) = ("X-Amz-Date", "20150830T123600Z");
pub(crate) const LOCAL: (&str, &str) = ("Host", "127.0.0.1:9324");
pub(crate) const JSON: (&str, &str) = ("Content-Type", "application/x-amz-json-1.0");

pub(crate) fn json() -> Recorded {
    let headers = "content-type;host;x-amz-date;x-amz-target";
    let authorization =
        authorization("AKIDEXAMPLE", headers, "07e3cefe2979276286780bbd0e16c611305fee2c5be8de29d1a3e9d6c1753f23");
    Recorded::new(
        "POST",
        "/",
        "",
        &[
            ("Host", "sqs.eu-west-1.amazonaws.com"),
            ("X-Amz-Target", "AmazonSQS.SendMessage"),
            JSON,
            ("User-Agent", "x"),
            DATE,
            ("Authorization", &authorization),
            ("Content-Length", "90"),
        ],
        "{\"QueueUrl\":\"https://sqs.eu-west-1.amazonaws.com/123456789012/jobs\",\"MessageBody\":\"hello\"}",
    )
}

pub(crate) fn with_token() -> Recorded {
    let headers = "content-type;host;x-amz-date;x-amz-security-token;x-amz-target";
    let authorization =
        authorization("AKIDTOKEN", headers, "4c0f48e70e3e399881ae2586e0a3f7d6f166f5c6152e8f68bc528338dc795e13");
    Recorded::new(
        "POST",
        "/",
        "",
        &[
            ("Host", "localhost:9324"),
            ("X-Amz-Target", "AmazonSQS.ListQueues"),
            JSON,
            DATE,
            ("X-Amz-Security-Token", "TOKEN+with/signs=="),
            ("Authorization", &authorization),
        ],
        "{}",
    )
}

pub(crate) fn presigned() -> Recorded {
    Recorded::new(
        "GET",
        "/000000000000/jobs",
        "Action=ReceiveMessage&AttributeName.1=All&X-Amz-Algorithm=AWS4-HMAC-SHA256\
         &X-Amz-Credential=AKIDEXAMPLE%2F20150830%2Feu-west-1%2Fsqs%2Faws4_request&X-Amz-Date=20150830T123600Z\
         &X-Amz-Expires=60&X-Amz-SignedHeaders=host\
         &X-Amz-Signature=c89a1762bc60c73c287fe911043c4e2f155b1dbca6a47cac58e783d05d491684",
        &[LOCAL],
        "",
    )
}

/// Requests that botocore signed.
pub(crate) fn recorded() -> Vec<(&'static str, Recorded)> {
    let query_post = Recorded::new(
        "POST",
        "/",
        "",
        &[
            LOCAL,
            ("Content-Type", "application/x-www-form-urlencoded; charset=utf-8"),
            DATE,
            (
                "Authorization",
                &authorization(
                    "AKIDEXAMPLE",
                    "content-type;host;x-amz-date",
                    "e753241f1f0972cbcd03a46a2c9fbfd21179030e33c67efb942950ffc29dec50",
                ),
            ),
        ],
        "Action=SendMessage&Version=2012-11-05&QueueUrl=http%3A%2F%2F127.0.0.1%3A9324%2F000000000000%2Fjobs\
         &MessageBody=a+b%26c",
    );
    let get = Recorded::new(
        "GET",
        "/000000000000/jobs.fifo",
        "Action=SendMessage&MessageBody=a%20b%2Bc%26%C3%A9&MessageGroupId=g~1",
        &[
            LOCAL,
            DATE,
            (
                "Authorization",
                &authorization(
                    "AKIDEXAMPLE",
                    "host;x-amz-date",
                    "d07e90f6871ac27b4fba64e15978258b61dfb796fba04b8c002aba8d992ffb4f",
                ),
            ),
        ],
        "",
    );
    // A path to normalise, parameters out of order and without value, and headers with odd spaces.
    let odd = Recorded::new(
        "GET",
        "//000000000000/./x/../jobs/",
        "b=2&a=3&a=1&c&d=~&e=a%2Fb&Action=GetQueueUrl&QueueName=q",
        &[
            LOCAL,
            ("X-Amz-Two", "  two   words "),
            ("x-amz-empty", ""),
            DATE,
            (
                "Authorization",
                &authorization(
                    "AKIDEXAMPLE",
                    "host;x-amz-date;x-amz-empty;x-amz-two",
                    "c49261bd156aa7379d4c3dc6e2d975d19c9919d9e6106ee8655075c71f7c63be",
                ),
            ),
        ],
        "",
    );
    let presigned_with_token = Recorded::new(
        "GET",
        "/000000000000/jobs",
        "Action=ReceiveMessage&X-Amz-Algorithm=AWS4-HMAC-SHA256\
         &X-Amz-Credential=AKIDTOKEN%2F20150830%2Feu-west-1%2Fsqs%2Faws4_request&X-Amz-Date=20150830T123600Z\
         &X-Amz-Expires=60&X-Amz-SignedHeaders=host&X-Amz-Security-Token=TOKEN%2Bwith%2Fsigns%3D%3D\
         &X-Amz-Signature=d332b4d18319f3754d1fb2785405891905e2a9e734cd0bbbe377b9f2c4d6468e",
        &[LOCAL],
        "",
    );
    let presigned_json = Recorded::new(
        "POST",
        "/",
        "X-Amz-Algorithm=AWS4-HMAC-SHA256\
         &X-Amz-Credential=AKIDEXAMPLE%2F20150830%2Feu-west-1%2Fsqs%2Faws4_request&X-Amz-Date=20150830T123600Z\
         &X-Amz-Expires=60&X-Amz-SignedHeaders=content-type%3Bhost%3Bx-amz-target\
         &X-Amz-Signature=77009e06a65b4bc2f0b436a3b68459dd0fe74fa7697e94db4e2290aba1c38c98",
        &[LOCAL, ("X-Amz-Target", "AmazonSQS.ListQueues"), JSON],
        "",
    );
    vec![
        ("json", json()),
        ("query by post", query_post),
        ("query by get", get),
        ("odd", odd),
        ("session token", with_token()),
        ("presigned", presigned()),
        ("presigned with session token", presigned_with_token),
        ("presigned json", presigned_json),
    ]
}
