//! Signatures of version 4: those that AWS publishes, those that botocore makes, and everything wrong.

use postbox_server::auth::*;
use postbox_server::wire::{HttpRequest, Protocol, render_error};
use postbox_server::{ErrorKind, SqsError};

const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

/// 2015-08-30 12:36:00, at which all recorded signatures were made.
const NOW: u64 = 1_440_938_160;

/// A request as it was signed.
#[derive(Clone)]
struct Recorded {
    method: &'static str,
    path: &'static str,
    query: String,
    headers: Vec<(String, String)>,
    body: String,
}

impl Recorded {
    fn new(method: &'static str, path: &'static str, query: &str, headers: &[(&str, &str)], body: &str) -> Self {
        let headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Recorded { method, path, query: query.into(), headers, body: body.into() }
    }

    fn with<T>(&self, use_it: impl FnOnce(&HttpRequest<'_>) -> T) -> T {
        let headers: Vec<(&str, &str)> =
            self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let body = self.body.as_bytes();
        use_it(&HttpRequest { method: self.method, path: self.path, query: &self.query, headers: &headers, body })
    }

    fn verify_at(&self, now: u64) -> Result<(String, String), SqsError> {
        let keys = keys();
        self.with(|http| verify(http, &keys, now).map(|verified| (verified.key.id.clone(), verified.region)))
    }

    fn set_header(&mut self, name: &str, value: &str) {
        self.headers.retain(|(found, _)| !found.eq_ignore_ascii_case(name));
        if !value.is_empty() {
            self.headers.push((name.into(), value.into()));
        }
    }

    fn header(&self, name: &str) -> String {
        self.headers.iter().find(|(found, _)| found == name).unwrap().1.clone()
    }
}

fn keys() -> AccessKeys {
    let mut with_token = AccessKey::new("AKIDTOKEN", "another/Secret+Text");
    with_token.session_token = Some(Secret::new("TOKEN+with/signs=="));
    AccessKeys::new([AccessKey::new("AKIDEXAMPLE", SECRET), with_token])
}

fn authorization(key: &str, headers: &str, signature: &str) -> String {
    let scope = "20150830/eu-west-1/sqs/aws4_request";
    format!("AWS4-HMAC-SHA256 Credential={key}/{scope}, SignedHeaders={headers}, Signature={signature}")
}

const DATE: (&str, &str) = ("X-Amz-Date", "20150830T123600Z");
const LOCAL: (&str, &str) = ("Host", "127.0.0.1:9324");
const JSON: (&str, &str) = ("Content-Type", "application/x-amz-json-1.0");

fn json() -> Recorded {
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

fn with_token() -> Recorded {
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

fn presigned() -> Recorded {
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
fn recorded() -> Vec<(&'static str, Recorded)> {
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
        "b=2&a=3&a=1&c&d=%7E&e=a%2Fb&Action=GetQueueUrl",
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
                    "a3656a566ff9467b7c12862732bb2a2ce3de924457756753c8e9e60ea7a1f7b7",
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

#[test]
fn signatures_of_botocore_are_good() {
    for (name, request) in recorded() {
        let (key, region) = request.verify_at(NOW).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(key == "AKIDEXAMPLE" || key == "AKIDTOKEN");
        assert_eq!(region, "eu-west-1");
    }
}

/// The examples of AWS's documentation and of its published test suite, for other services than SQS.
#[test]
fn signatures_that_aws_publishes() {
    let scope = "20150830/us-east-1/service/aws4_request";
    let host = ("Host", "example.amazonaws.com");
    let form = ("Content-Type", "application/x-www-form-urlencoded");
    let unreserved = "/-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    for (request, signed, expected) in [
        (
            Recorded::new("GET", "/", "", &[host, DATE], ""),
            "host;x-amz-date",
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
        ),
        (
            Recorded::new("POST", "/", "", &[host, DATE], ""),
            "host;x-amz-date",
            "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
        ),
        (
            Recorded::new("GET", unreserved, "", &[host, DATE], ""),
            "host;x-amz-date",
            "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f",
        ),
        (
            Recorded::new("GET", "/", "Param2=value2&Param1=value1", &[host, DATE], ""),
            "host;x-amz-date",
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        ),
        (
            Recorded::new("GET", "/", "%E1%88%B4=bar", &[host, DATE], ""),
            "host;x-amz-date",
            "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04",
        ),
        (
            // The path as it is before it is encoded for the request.
            Recorded::new("GET", "/ሴ", "", &[host, DATE], ""),
            "host;x-amz-date",
            "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85",
        ),
        (
            Recorded::new("POST", "/", "", &[host, DATE, form], "Param1=value1"),
            "content-type;host;x-amz-date",
            "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
        ),
    ] {
        let headers: Vec<String> = signed.split(';').map(str::to_owned).collect();
        let canonical = request.with(|http| canonical_request(http, &headers));
        let text = string_to_sign("20150830T123600Z", scope, &canonical);
        assert_eq!(signature(&signing_key(&Secret::new(SECRET), scope), &text), expected, "{canonical}");
    }

    let iam = "20150830/us-east-1/iam/aws4_request";
    let key = signing_key(&Secret::new(SECRET), iam);
    let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "c4afb1cc5771d871763a393e44b703571b55cc28424d1a5e86da6ed3c154a4b9");
    let request = Recorded::new(
        "GET",
        "/",
        "Action=ListUsers&Version=2010-05-08",
        &[("Host", "iam.amazonaws.com"), ("Content-Type", "application/x-www-form-urlencoded; charset=utf-8"), DATE],
        "",
    );
    let headers = ["content-type", "host", "x-amz-date"].map(str::to_owned);
    let text = string_to_sign("20150830T123600Z", iam, &request.with(|http| canonical_request(http, &headers)));
    assert!(text.ends_with("f536975d06c0309214f805bb90ccff089219ecd68b2577efef23edd43b7e1a59"));
    assert_eq!(signature(&key, &text), "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7");
}

const MISMATCH: &str = "The request signature we calculated does not match the signature you provided. Check your \
                        AWS Secret Access Key and signing method. Consult the service documentation for details.";

fn failure(request: &Recorded, now: u64) -> (ErrorKind, String) {
    let error = request.verify_at(now).unwrap_err();
    (error.kind, error.message.into_owned())
}

/// Whatever is changed in a signed request, the signature no longer fits.
#[test]
fn every_part_is_signed() {
    type Change = fn(&mut Recorded);
    let changes: [Change; 12] = [
        |request| request.method = if request.method == "GET" { "POST" } else { "GET" },
        |request| request.path = "/other",
        |request| request.query.push_str("&MessageBody=x"),
        |request| request.query.insert_str(0, "A=b&"),
        |request| request.body.push(' '),
        |request| request.set_header("Host", "another"),
        |request| request.headers.push(("Host".into(), "another".into())),
        |request| request.query = request.query.replace("Action=", "Action=x"),
        |request| request.query = request.query.replace("eu-west-1", "eu-west-2"),
        |request| request.query = request.query.replace("Expires=60", "Expires=61"),
        |request| {
            let changed = request.headers.iter().find(|(name, _)| name == "Authorization").cloned();
            changed.map(|(name, value)| request.set_header(&name, &value.replace("eu-west-1", "eu-west-2")));
        },
        |request| {
            let changed = request.headers.iter().find(|(name, _)| name == "X-Amz-Target").cloned();
            changed.map(|(name, _)| request.set_header(&name, "AmazonSQS.DeleteQueue"));
        },
    ];
    for (name, request) in recorded() {
        for (index, change) in changes.iter().enumerate() {
            let mut changed = request.clone();
            change(&mut changed);
            let is_same = (changed.method, changed.path, &changed.query, &changed.headers, &changed.body)
                == (request.method, request.path, &request.query, &request.headers, &request.body);
            if !is_same {
                let expected = (ErrorKind::SignatureDoesNotMatch, MISMATCH.to_owned());
                assert_eq!(failure(&changed, NOW), expected, "{name}: change {index}");
            }
        }
    }
}

#[test]
fn a_wrong_signature_or_secret() {
    let mut request = json();
    let good = request.header("Authorization");
    for bad in [
        good.replace("Signature=0", "Signature=1"),
        good.replace("Signature=07e3", "Signature=07E3"),
        good[..good.len() - 1].to_owned(),
        format!("{good}0"),
        format!("{}Signature=", good.split("Signature=").next().unwrap()),
        good.replace("content-type;host", "host;content-type"),
        good.replace(";x-amz-target", ";x-amz-target;x-absent"),
    ] {
        request.set_header("Authorization", &bad);
        assert_eq!(failure(&request, NOW), (ErrorKind::SignatureDoesNotMatch, MISMATCH.into()), "{bad}");
    }
    let keys = AccessKeys::new([AccessKey::new("AKIDEXAMPLE", "another secret")]);
    let error = json().with(|http| verify(http, &keys, NOW).unwrap_err());
    assert_eq!(error.kind, ErrorKind::SignatureDoesNotMatch);
}

#[test]
fn requests_without_signature() {
    let mut request = json();
    request.set_header("Authorization", "");
    let expected = (ErrorKind::MissingAuthenticationToken, "Request is missing Authentication Token".to_owned());
    assert_eq!(failure(&request, NOW), expected);
    assert_eq!(failure(&Recorded::new("GET", "/", "Action=ListQueues", &[LOCAL], ""), NOW), expected);
}

#[test]
fn unknown_keys_and_session_tokens() {
    let invalid =
        (ErrorKind::InvalidClientTokenId, "The security token included in the request is invalid.".to_owned());
    let mut unknown = json();
    unknown.set_header("Authorization", &json().header("Authorization").replace("AKIDEXAMPLE", "AKIDOTHER"));
    let mut unexpected = json();
    unexpected.set_header("X-Amz-Security-Token", "x");
    let mut absent = with_token();
    absent.set_header("X-Amz-Security-Token", "");
    let mut wrong = with_token();
    wrong.set_header("X-Amz-Security-Token", "TOKEN+with/signs=");
    for request in [unknown, unexpected, absent, wrong] {
        assert_eq!(failure(&request, NOW), invalid);
    }
}

#[test]
fn clocks_may_differ_by_five_minutes() {
    for now in [NOW - 300, NOW, NOW + 300] {
        assert!(json().verify_at(now).is_ok());
    }
    assert_eq!(
        failure(&json(), NOW + 301),
        (
            ErrorKind::SignatureDoesNotMatch,
            "Signature expired: 20150830T123600Z is now earlier than 20150830T123601Z (20150830T124101Z - 5 min.)"
                .into()
        )
    );
    assert_eq!(
        failure(&json(), NOW - 301),
        (
            ErrorKind::SignatureDoesNotMatch,
            "Signature not yet current: 20150830T123600Z is still later than 20150830T123559Z \
             (20150830T123059Z + 5 min.)"
                .into()
        )
    );
}

#[test]
fn presigned_urls_expire() {
    for now in [NOW - 300, NOW, NOW + 60] {
        assert!(presigned().verify_at(now).is_ok());
    }
    assert_eq!(failure(&presigned(), NOW + 61), (ErrorKind::RequestExpired, "Request has expired.".into()));
    assert_eq!(failure(&presigned(), NOW - 301).0, ErrorKind::SignatureDoesNotMatch);
    for expires in ["0", "604801", "x", "-1", ""] {
        let mut request = presigned();
        request.query = request.query.replace("Expires=60", &format!("Expires={expires}"));
        assert_eq!(failure(&request, NOW).0, ErrorKind::IncompleteSignature, "{expires}");
    }
}

#[test]
fn headers_that_must_be_signed() {
    let mut request = json();
    request.set_header("Authorization", &json().header("Authorization").replace("host;", ""));
    assert_eq!(
        failure(&request, NOW),
        (
            ErrorKind::SignatureDoesNotMatch,
            "'Host' or ':authority' must be a 'SignedHeader' in the AWS Authorization.".into()
        )
    );
    let mut request = json();
    request.set_header("X-Amz-Meta", "x");
    assert_eq!(
        failure(&request, NOW),
        (ErrorKind::SignatureDoesNotMatch, "'x-amz-meta' must be a 'SignedHeader' in the AWS Authorization.".into())
    );
    // Proxies add this one.
    let mut request = json();
    request.set_header("X-Amzn-Trace-Id", "Root=1");
    assert!(request.verify_at(NOW).is_ok());
}

#[test]
fn the_digest_of_the_body_is_not_believed() {
    let mut request = presigned();
    let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    request.query = request.query.replace("SignedHeaders=host", "SignedHeaders=host%3Bx-amz-content-sha256");
    for digest in [empty, "UNSIGNED-PAYLOAD"] {
        request.set_header("X-Amz-Content-Sha256", digest);
        assert_eq!(failure(&request, NOW).0, ErrorKind::SignatureDoesNotMatch);
    }
}

#[test]
fn headers_that_are_incomplete() {
    let all = "Authorization header requires 'Credential' parameter. Authorization header requires 'Signature' \
               parameter. Authorization header requires 'SignedHeaders' parameter.";
    for (header, message) in [
        ("Bearer hunter2", all),
        ("AWS4-HMAC-SHA256", all),
        ("AWS4-HMAC-SHA1 Credential=a/b/c/d/e, SignedHeaders=host, Signature=hunter2", all),
        (
            "AWS4-HMAC-SHA256 Credential=a/b/c/d/e, Signature=hunter2",
            "Authorization header requires 'SignedHeaders' parameter.",
        ),
        (
            "AWS4-HMAC-SHA256 Credential=a/b/c/d/e, SignedHeaders",
            "Invalid key=value pair (missing equal-sign) in Authorization header",
        ),
        (
            "AWS4-HMAC-SHA256 Credential=a/b/c/d, SignedHeaders=host, Signature=hunter2",
            "Credential must have exactly 5 slash-delimited elements",
        ),
        (
            "AWS4-HMAC-SHA256 Credential=hunter2, SignedHeaders=host, Signature=x",
            "Credential must have exactly 5 slash-delimited elements",
        ),
    ] {
        let mut request = json();
        request.set_header("Authorization", header);
        let (kind, found) = failure(&request, NOW);
        assert_eq!(kind, ErrorKind::IncompleteSignature, "{header}");
        assert!(found.starts_with(message), "{found}");
        assert!(!found.contains("hunter2"), "{found}");
    }
    let mut request = json();
    request.set_header("X-Amz-Date", "");
    assert!(failure(&request, NOW).1.contains("requires existence of either a 'X-Amz-Date' or a 'Date' header."));
    request.set_header("Date", "Sun, 30 Aug 2015 12:36:00 GMT");
    assert_eq!(
        failure(&request, NOW),
        (
            ErrorKind::IncompleteSignature,
            "Date must be in ISO-8601 'basic format'. Got 'Sun, 30 Aug 2015 12:36:00 GMT'. See \
             http://en.wikipedia.org/wiki/ISO_8601"
                .into()
        )
    );
}

#[test]
fn urls_that_are_incomplete() {
    for name in ["X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-SignedHeaders", "X-Amz-Signature"] {
        let mut request = presigned();
        let kept = request.query.split('&').filter(|parameter| !parameter.starts_with(name)).collect::<Vec<_>>();
        request.query = kept.join("&");
        let message =
            format!("AWS query-string parameters must include '{name}'. Re-examine the query-string parameters.");
        assert_eq!(failure(&request, NOW), (ErrorKind::IncompleteSignature, message));
    }
    let mut request = presigned();
    request.query = request.query.replace("HMAC-SHA256", "HMAC-SHA1");
    assert_eq!(failure(&request, NOW).0, ErrorKind::IncompleteSignature);
}

#[test]
fn scopes_of_credentials() {
    for (from, to, message) in [
        ("/sqs/", "/sns/", "Credential should be scoped to correct service: 'sqs'."),
        ("/eu-west-1/", "//", "Credential should be scoped to a valid region."),
        ("/aws4_request", "/aws5_request", "Credential should be scoped with a valid terminator: 'aws4_request'."),
        (
            "/20150830/",
            "/20150829/",
            "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP: '20150829' != \
             '20150830', from '20150830T123600Z'.",
        ),
    ] {
        let mut request = json();
        request.set_header("Authorization", &json().header("Authorization").replace(from, to));
        assert_eq!(failure(&request, NOW), (ErrorKind::SignatureDoesNotMatch, message.into()));
    }
}

#[test]
fn errors_of_signatures_in_both_protocols() {
    let error = Recorded::new("GET", "/", "", &[], "").verify_at(NOW).unwrap_err();
    let xml = render_error(Protocol::Query, &error, "id");
    assert_eq!(xml.status, 403);
    assert!(String::from_utf8(xml.body).unwrap().contains("<Code>MissingAuthenticationToken</Code>"));
    let json = render_error(Protocol::Json, &error, "id");
    assert_eq!(json.header("x-amzn-query-error"), Some("MissingAuthenticationToken;Sender"));
    let body = String::from_utf8(json.body).unwrap();
    assert!(body.contains("\"com.amazon.coral.service#MissingAuthenticationTokenException\""), "{body}");
}

#[test]
fn times() {
    for (text, seconds) in [
        ("19700101T000000Z", 0),
        ("20150830T123600Z", NOW),
        ("20000229T235959Z", 951_868_799),
        ("21000301T000000Z", 4_107_542_400),
        ("99991231T235959Z", 253_402_300_799),
    ] {
        assert_eq!(parse_time(text), Some(seconds));
        assert_eq!(format_time(seconds), text);
    }
    for text in [
        "",
        "20150830",
        "20150830T123600",
        "20150830T123600z",
        "20150830 123600Z",
        "20151330T123600Z",
        "20150230T123600Z",
        "20150830T243600Z",
        "20150830T126000Z",
        "19691231T235959Z",
        "2015083aT123600Z",
        "2015083éT12360Z",
    ] {
        assert_eq!(parse_time(text), None, "{text}");
    }
}
