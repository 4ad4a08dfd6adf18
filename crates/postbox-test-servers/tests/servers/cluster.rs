//! Clusters: fail-over, slot migration, proxies.

use postbox_test_servers::{Client, RedisCluster, Reply};

#[test]
fn a_killed_primary_is_replaced_and_comes_back_as_a_replica() {
    let cluster = RedisCluster::start(3, 1);
    let primary = cluster.primary_of_key("a");
    let replicas = cluster.replicas_of(primary);
    assert_eq!((primary < 3, replicas.len()), (true, 1));
    cluster.node(primary).command(&["SET", "a", "1"]);
    cluster.node(primary).command(&["WAIT", "1", "0"]);
    cluster.kill(primary);
    cluster.wait_until_ok();
    assert_eq!(cluster.primary_of_key("a"), replicas[0]);
    assert_eq!(cluster.node(replicas[0]).command(&["GET", "a"]), "1");
    cluster.restart(primary);
    cluster.wait_until_ok();
    assert_eq!(cluster.replicas_of(replicas[0]), [primary]);
}

#[test]
fn a_slot_moves_step_by_step() {
    let cluster = RedisCluster::builder().primaries(2).password("secret").start();
    assert!(cluster.url().starts_with("redis+cluster://:secret@127.0.0.1:"));
    let slot = cluster.slot_of("{s}");
    let from = cluster.primary_of_slot(slot);
    let to = 1 - from;
    let at = |node: usize, command: &[&str]| cluster.node(node).try_command(command).unwrap();
    for key in ["{s}1", "{s}2", "{s}3"] {
        at(from, &["SET", key, "x"]);
    }
    assert_eq!(at(to, &["GET", "{s}1"]).to_string(), format!("MOVED {slot} 127.0.0.1:{}", cluster.node(from).port()));
    let migration = cluster.begin_migration(slot, to);
    assert_eq!(migration.keys().len(), 3);
    migration.move_key("{s}1");
    // Half of the keys are moved.
    let ask = format!("ASK {slot} 127.0.0.1:{}", cluster.node(to).port());
    assert_eq!(at(from, &["GET", "{s}1"]), Reply::Error(ask));
    assert_eq!(at(from, &["GET", "{s}2"]).to_string(), "x");
    let mut asking = cluster.node(to).client().unwrap();
    asking.call(&["ASKING"]).unwrap();
    assert_eq!(asking.call(&["GET", "{s}1"]).unwrap().to_string(), "x");
    assert!(at(from, &["MGET", "{s}1", "{s}2"]).to_string().starts_with("TRYAGAIN"));
    migration.move_keys();
    assert!(migration.keys().is_empty());
    migration.finish();
    assert_eq!(cluster.primary_of_slot(slot), to);
    assert_eq!(at(to, &["MGET", "{s}1", "{s}2", "{s}3"]).to_string(), "x\nx\nx");
    cluster.migrate_slot(slot, from);
    assert_eq!(at(from, &["GET", "{s}3"]).to_string(), "x");
}

#[test]
fn clients_are_redirected_to_the_proxies() {
    let cluster = RedisCluster::builder().replicas(1).proxied().start();
    let ports: Vec<u16> = (0..6).map(|node| cluster.proxy(node).port()).collect();
    assert_eq!(cluster.urls(), ports.iter().map(|port| format!("redis://127.0.0.1:{port}")).collect::<Vec<_>>());
    let primary = cluster.primary_of_key("a");
    let mut wrong = Client::connect(ports[(primary + 1) % 3]).unwrap();
    let moved = wrong.call(&["GET", "a"]).unwrap().to_string();
    assert!(moved.ends_with(&format!("127.0.0.1:{}", ports[primary])), "{moved}");
    let slots = wrong.call(&["CLUSTER", "SLOTS"]).unwrap().to_string();
    assert!(ports.iter().all(|port| slots.lines().any(|line| line == port.to_string())), "{slots}");

    // Replication goes through the proxies too. Faults do not affect it, and it is not counted.
    let proxy = cluster.proxy(primary);
    assert_eq!(proxy.stats().connections, 0);
    let mut client = Client::connect(proxy.port()).unwrap();
    proxy.cut();
    assert!(client.call(&["PING"]).is_err());
    cluster.node(primary).command(&["SET", "a", "1"]);
    assert_eq!(cluster.node(primary).command(&["WAIT", "1", "0"]), "1");

    // A fail-over does not change which proxy belongs to a node.
    cluster.kill(primary);
    cluster.wait_until_ok();
    cluster.restart(primary);
    cluster.wait_until_ok();
    let now = cluster.primary_of_key("a");
    assert_ne!(now, primary);
    let moved = Client::connect(ports[primary]).unwrap().call(&["GET", "a"]).unwrap().to_string();
    assert!(moved.ends_with(&format!("127.0.0.1:{}", ports[now])), "{moved}");
}
