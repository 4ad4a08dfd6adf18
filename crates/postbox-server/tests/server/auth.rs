//! Signatures of version 4: those that AWS publishes, those that botocore makes, and everything
//! wrong.

use crate::recorded::*;
use postbox_server::ErrorKind;
use postbox_server::auth::*;
use postbox_server::wire::{Protocol, Request, parse, render_error};

#[test]
fn signatures_of_botocore_are_good() {
    for (name, request) in recorded() {
        let (key, region) = request.verify_at(NOW).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(key == "AKIDEXAMPLE" || key == "AKIDTOKEN");
        assert_eq!(region, "eu-west-1");
    }
}

#[test]
fn requests_of_botocore_are_read() {
    let actions: Vec<(&str, &str, Option<String>)> = recorded()
        .into_iter()
        .map(|(name, request)| {
            request.with(|http| {
                let parsed = parse(Protocol::of(http), http).unwrap();
                let body = match &parsed {
                    Request::SendMessage(send) => Some(send.message_body.clone()),
                    _ => None,
                };
                (name, parsed.action().name(), body)
            })
        })
        .collect();
    let row = |name, action, body: Option<&str>| (name, action, body.map(str::to_owned));
    assert_eq!(
        actions,
        [
            row("json", "SendMessage", Some("hello")),
            row("query by post", "SendMessage", Some("a b&c")),
            row("query by get", "SendMessage", Some("a b+c&é")),
            row("odd", "GetQueueUrl", None),
            row("session token", "ListQueues", None),
            row("presigned", "ReceiveMessage", None),
            row("presigned with session token", "ReceiveMessage", None),
            row("presigned json", "ListQueues", None),
        ]
    );
}

/// The examples of AWS's documentation and of its published test suite, for other services than
/// SQS.
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
            if let Some((name, value)) = changed {
                request.set_header(&name, &value.replace("eu-west-1", "eu-west-2"));
            }
        },
        |request| {
            let changed = request.headers.iter().find(|(name, _)| name == "X-Amz-Target").cloned();
            if let Some((name, _)) = changed {
                request.set_header(&name, "AmazonSQS.DeleteQueue");
            }
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
    // Proxies add the first; the SDK for PHP leaves out the second.
    for name in ["X-Amzn-Trace-Id", "X-Amz-User-Agent"] {
        let mut request = json();
        request.set_header(name, "x");
        assert!(request.verify_at(NOW).is_ok());
    }
}

#[test]
fn names_of_signed_headers_are_names() {
    for name in ["", "a%0Ab", "a%3Ab", "a%20b", "%C3%A4"] {
        let mut request = presigned();
        request.query = request.query.replace("SignedHeaders=host", &format!("SignedHeaders=host%3B{name}"));
        let (kind, message) = failure(&request, NOW);
        assert_eq!(kind, ErrorKind::SignatureDoesNotMatch);
        assert!(message.ends_with("is no name of a header that can be signed."), "{message}");
    }
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

/// Signs a request with the published example of a key, by a header or by its URL.
fn signed(mut request: Recorded, names: &str, in_header: bool) -> Recorded {
    let scope = "20150830/eu-west-1/sqs/aws4_request";
    let list: Vec<String> = names.split(';').map(str::to_owned).collect();
    let canonical = request.with(|http| canonical_request(http, &list));
    let text = string_to_sign("20150830T123600Z", scope, &canonical);
    let signature = signature(&signing_key(&Secret::new(SECRET), scope), &text);
    if in_header {
        request.set_header("Authorization", &authorization("AKIDEXAMPLE", names, &signature));
    } else {
        request.query.push_str(&format!("&X-Amz-Signature={signature}"));
    }
    request
}

#[test]
fn a_stated_digest_of_the_body_must_be_right() {
    let of_hello = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    let of_nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    for (digest, good) in [(of_hello, true), (of_nothing, false), ("UNSIGNED-PAYLOAD", false), ("", false)] {
        let headers = [LOCAL, DATE, ("X-Amz-Content-Sha256", digest)];
        let request = Recorded::new("POST", "/", "", &headers, "hello");
        let result = signed(request, "host;x-amz-content-sha256;x-amz-date", true).verify_at(NOW);
        assert_eq!(result.is_ok(), good, "{digest}");
    }
}

#[test]
fn a_url_without_expiry_is_good_for_five_minutes() {
    let query = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIDEXAMPLE%2F20150830%2Feu-west-1%2Fsqs\
                 %2Faws4_request&X-Amz-Date=20150830T123600Z&X-Amz-SignedHeaders=host";
    let request = signed(Recorded::new("GET", "/", query, &[LOCAL], ""), "host", false);
    assert!(request.verify_at(NOW + 300).is_ok());
    assert_eq!(failure(&request, NOW + 301).0, ErrorKind::RequestExpired);
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
        "20150030T123600Z",
        "2015083/T123600Z",
        "201508:0T123600Z",
        "20161231T235960Z",
        "19691231T235959Z",
        "2015083aT123600Z",
        "2015083éT12360Z",
    ] {
        assert_eq!(parse_time(text), None, "{text}");
    }
}
