//! Sentinels.

use postbox_test_servers::RedisSentinel;

#[test]
fn a_killed_primary_is_replaced() {
    let all = RedisSentinel::start();
    assert_eq!(all.urls().len(), 3);
    let (primary, replica) = (all.primary(), all.replica());
    primary.command(&["SET", "a", "1"]);
    primary.command(&["WAIT", "1", "0"]);
    let old = all.fail_over();
    assert_eq!(old.port(), primary.port());
    assert_eq!(all.primary().port(), replica.port());
    assert_eq!(all.primary().command(&["GET", "a"]), "1");
    // Sentinels keep their state across a restart.
    all.sentinels()[0].restart();
    let named = all.sentinels()[0].command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", all.primary_name()]);
    assert_eq!(named, format!("127.0.0.1\n{}", replica.port()));
}
