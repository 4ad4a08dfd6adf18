//! A Redis Cluster.

use std::time::Duration;

use crate::supervisor::eventually;
use crate::{Proxy, Redis, Reply};

const SLOTS: usize = 16_384;

/// A Redis Cluster whose primaries have about the same number of slots. Nodes are numbered, the primaries first. Node
/// `primaries + i` is a replica of primary `i % primaries`. A fail-over changes roles, not numbers. It needs a majority of
/// the primaries, so at least three.
pub struct RedisCluster {
    nodes: Vec<Redis>,
    proxies: Vec<Proxy>,
}

/// Options of a [`RedisCluster`].
#[must_use]
pub struct RedisClusterBuilder {
    primaries: usize,
    replicas: usize,
    node_timeout: Duration,
    proxied: bool,
    password: Option<String>,
    config: Vec<(String, String)>,
}

/// A node, as another node describes it.
#[derive(Debug)]
struct View {
    node: usize,
    /// The primary, if the node is a replica.
    primary: Option<usize>,
    slots: Vec<(usize, usize)>,
}

impl RedisClusterBuilder {
    /// Sets the number of primaries; 3 by default.
    pub fn primaries(mut self, primaries: usize) -> Self {
        self.primaries = primaries;
        self
    }

    /// Sets the number of replicas of each primary; 0 by default.
    pub fn replicas(mut self, replicas_per_primary: usize) -> Self {
        self.replicas = replicas_per_primary;
        self
    }

    /// Sets the time after which a silent node counts as down; 1 s by default. Use more if the test is not about
    /// fail-over, since a busy machine may delay a node.
    pub fn node_timeout(mut self, timeout: Duration) -> Self {
        self.node_timeout = timeout;
        self
    }

    /// Starts a [`Proxy`] in front of each node. The cluster announces the proxies to clients. Replicas connect through
    /// the proxies too, but only [`Proxy::refuse`] affects them.
    pub fn proxied(mut self) -> Self {
        self.proxied = true;
        self
    }

    /// Sets the password of the default user.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Adds a line to redis.conf of every node.
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.config.push((name.into(), value.into()));
        self
    }

    /// Starts the cluster and waits until every node reports that it is complete.
    pub fn start(self) -> RedisCluster {
        let nodes: Vec<Redis> = std::thread::scope(|scope| {
            let start = || {
                let mut node = Redis::builder()
                    .cluster()
                    .config("cluster-node-timeout", "1000")
                    .config("cluster-replica-validity-factor", "0")
                    // Clients are not told of a replica before its first ping from the primary, so ping every second.
                    .config("repl-ping-replica-period", "1");
                if let Some(password) = &self.password {
                    node = node.password(password);
                }
                for (name, value) in &self.config {
                    node = node.config(name, value);
                }
                node.start()
            };
            let starting: Vec<_> = (0..self.primaries * (1 + self.replicas)).map(|_| scope.spawn(start)).collect();
            starting.into_iter().map(|node| node.join().expect("a node")).collect()
        });
        let proxies = if self.proxied {
            nodes.iter().map(|node| Proxy::start(node.port())).collect::<Vec<_>>()
        } else {
            Vec::new()
        };
        for (node, proxy) in nodes.iter().zip(&proxies) {
            node.configure("cluster-announce-port", &proxy.port().to_string());
            node.configure("cluster-announce-bus-port", &node.bus_port().to_string());
        }
        let cluster = RedisCluster { nodes, proxies };
        for (index, node) in cluster.nodes.iter().enumerate() {
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
            if index < self.primaries {
                let bound = |primary: usize| primary * SLOTS / self.primaries;
                let (first, last) = (bound(index).to_string(), (bound(index + 1) - 1).to_string());
                node.command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
            }
            // Introducing each pair of nodes is faster than waiting for the gossip protocol.
            for other in &cluster.nodes[..index] {
                let (port, bus) = (other.port().to_string(), other.bus_port().to_string());
                node.command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
            }
        }
        for replica in self.primaries..cluster.nodes.len() {
            let primary = cluster.id(replica % self.primaries);
            eventually("making a node a replica", || {
                match cluster.nodes[replica].try_command(&["CLUSTER", "REPLICATE", &primary]) {
                    Ok(Reply::Text(_)) => Ok(()),
                    // The replica does not know its primary yet.
                    other => Err(format!("{other:?}")),
                }
            });
        }
        cluster.wait_until_ok();
        // Nodes with a longer timeout exchange fewer messages, so it is set only after the cluster is complete.
        for node in &cluster.nodes {
            node.configure("cluster-node-timeout", &self.node_timeout.as_millis().to_string());
        }
        cluster
    }
}

impl RedisCluster {
    /// Starts a cluster in which a node counts as down after one second of silence.
    pub fn start(primaries: usize, replicas_per_primary: usize) -> RedisCluster {
        RedisCluster::builder().primaries(primaries).replicas(replicas_per_primary).start()
    }

    /// Options for a cluster.
    pub fn builder() -> RedisClusterBuilder {
        RedisClusterBuilder {
            primaries: 3,
            replicas: 0,
            node_timeout: Duration::from_secs(1),
            proxied: false,
            password: None,
            config: Vec::new(),
        }
    }

    /// A `redis+cluster://` URL with the password and all nodes or their proxies.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.ports().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("redis+cluster://{}{}", self.nodes[0].credentials(), hosts.join(","))
    }

    /// A `redis://` URL with the password for each node or its proxy.
    pub fn urls(&self) -> Vec<String> {
        let credentials = self.nodes[0].credentials();
        self.ports().map(|port| format!("redis://{credentials}127.0.0.1:{port}")).collect()
    }

    fn ports(&self) -> impl Iterator<Item = u16> + '_ {
        (0..self.nodes.len()).map(|node| self.port(node))
    }

    /// The port that clients of a node connect to.
    fn port(&self, node: usize) -> u16 {
        self.proxies.get(node).map_or(self.nodes[node].port(), Proxy::port)
    }

    /// A node by its number.
    pub fn node(&self, node: usize) -> &Redis {
        &self.nodes[node]
    }

    /// All nodes.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// The proxy in front of a node.
    pub fn proxy(&self, node: usize) -> &Proxy {
        self.proxies.get(node).expect("a cluster that was built with proxies")
    }

    /// The slot of a key.
    pub fn slot_of(&self, key: &str) -> usize {
        self.running().command(&["CLUSTER", "KEYSLOT", key]).parse().expect("a slot")
    }

    /// The number of the primary that owns a slot.
    pub fn primary_of_slot(&self, slot: usize) -> usize {
        let views = self.views(self.running()).expect("a view of the cluster");
        let owner = views.iter().find(|view| view.slots.iter().any(|(first, last)| (*first..=*last).contains(&slot)));
        owner.expect("a slot with an owner").node
    }

    /// The number of the primary that owns a key's slot.
    pub fn primary_of_key(&self, key: &str) -> usize {
        self.primary_of_slot(self.slot_of(key))
    }

    /// The numbers of a primary's replicas.
    pub fn replicas_of(&self, primary: usize) -> Vec<usize> {
        let views = self.views(self.running()).expect("a view of the cluster");
        views.iter().filter(|view| view.primary == Some(primary)).map(|view| view.node).collect()
    }

    /// Kills a node with SIGKILL.
    pub fn kill(&self, node: usize) {
        self.nodes[node].kill();
    }

    /// Restarts a node with its files.
    pub fn restart(&self, node: usize) {
        self.nodes[node].restart();
    }

    /// Waits until the cluster is complete: all running nodes report the state `ok` and agree on the owner of each slot,
    /// all owners run, and all replicas have copied their primary's data.
    pub fn wait_until_ok(&self) {
        eventually("a complete cluster", || {
            let mut agreed: Option<Vec<(usize, usize, usize)>> = None;
            let running: Vec<usize> = (0..self.nodes.len()).filter(|node| self.nodes[*node].is_running()).collect();
            for &index in &running {
                let node = &self.nodes[index];
                let ask = |command: &[&str]| node.try_command(command).map(|reply| reply.to_string());
                let info = ask(&["CLUSTER", "INFO"]).map_err(|error| error.to_string())?;
                if !info.contains("cluster_state:ok") {
                    return Err(format!("node {index}: {info}"));
                }
                let views = self.views(node)?;
                if let Some(unknown) = running.iter().find(|node| !views.iter().any(|view| view.node == **node)) {
                    return Err(format!("node {index} does not know node {unknown}"));
                }
                for view in &views {
                    let primary_runs = view.primary.is_some_and(|primary| running.contains(&primary));
                    let wrong = match running.contains(&view.node) {
                        true => view.slots.is_empty() && !primary_runs,
                        false => !view.slots.is_empty(),
                    };
                    if wrong {
                        return Err(format!("node {index} reports {view:?}, and only {running:?} run"));
                    }
                }
                let mut slots: Vec<(usize, usize, usize)> = views
                    .iter()
                    .flat_map(|view| view.slots.iter().map(|slots| (slots.0, slots.1, view.node)))
                    .collect();
                slots.sort_unstable();
                if slots.iter().map(|(first, last, _)| last + 1 - first).sum::<usize>() != SLOTS {
                    return Err(format!("node {index} knows only {slots:?}"));
                }
                if agreed.get_or_insert_with(|| slots.clone()) != &slots {
                    return Err(format!("nodes disagree: {agreed:?}, and for node {index} {slots:?}"));
                }
                // Clients read CLUSTER SLOTS, in which replicas appear later than in CLUSTER NODES.
                let slots = ask(&["CLUSTER", "SLOTS"]).map_err(|error| error.to_string())?;
                if let Some(port) = running.iter().map(|node| self.port(*node).to_string()).find(|port| {
                    // Ports are greater than slot numbers, so a line with this number is a port.
                    !slots.lines().any(|line| line == port)
                }) {
                    return Err(format!("node {index} does not tell clients of port {port}: {slots}"));
                }
                let replication = ask(&["INFO", "replication"]).map_err(|error| error.to_string())?;
                if replication.contains("master_link_status:down") {
                    return Err(format!("node {index}: {replication}"));
                }
            }
            Ok(())
        });
    }

    /// Begins to move a slot to another primary.
    pub fn begin_migration(&self, slot: usize, to: usize) -> SlotMigration<'_> {
        let from = self.primary_of_slot(slot);
        assert_ne!(from, to, "the target owns the slot already");
        let migration = SlotMigration { cluster: self, slot: slot.to_string(), from, to };
        self.nodes[to].command(&["CLUSTER", "SETSLOT", &migration.slot, "IMPORTING", &self.id(from)]);
        self.nodes[from].command(&["CLUSTER", "SETSLOT", &migration.slot, "MIGRATING", &self.id(to)]);
        migration
    }

    /// Moves a slot with its keys to another primary.
    pub fn migrate_slot(&self, slot: usize, to: usize) {
        let migration = self.begin_migration(slot, to);
        migration.move_keys();
        migration.finish();
    }

    fn id(&self, node: usize) -> String {
        self.nodes[node].command(&["CLUSTER", "MYID"])
    }

    fn running(&self) -> &Redis {
        self.nodes.iter().find(|node| node.is_running()).expect("a running node")
    }

    /// All nodes that a node knows, as it describes them.
    fn views(&self, node: &Redis) -> Result<Vec<View>, String> {
        let table = node.try_command(&["CLUSTER", "NODES"]).map_err(|error| error.to_string())?.to_string();
        // Each line: id ip:port@bus-port flags primary ping pong epoch link slots…
        let rows: Vec<Vec<&str>> = table.lines().map(|row| row.split(' ').collect()).collect();
        let number = |row: &Vec<&str>| {
            let bus: u16 = row.get(1)?.split(['@', ',']).nth(1)?.parse().ok()?;
            self.nodes.iter().position(|node| node.bus_port() == bus)
        };
        rows.iter()
            .map(|row| {
                let node = number(row).ok_or_else(|| format!("an unknown node in {table}"))?;
                let primary = rows.iter().find(|primary| primary[0] == row[3]).and_then(number);
                // Slots in brackets are being migrated.
                let slots = row[8..].iter().filter(|slots| !slots.starts_with('[')).map(|slots| {
                    let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
                    (first.parse().expect("a slot"), last.parse().expect("a slot"))
                });
                Ok(View { node, primary, slots: slots.collect() })
            })
            .collect()
    }
}

/// A slot that is being migrated. The old owner redirects requests for keys that it has moved (ASK).
#[must_use = "the migration must be finished"]
pub struct SlotMigration<'a> {
    cluster: &'a RedisCluster,
    slot: String,
    from: usize,
    to: usize,
}

impl SlotMigration<'_> {
    /// The keys that are not moved yet.
    pub fn keys(&self) -> Vec<String> {
        let keys = self.cluster.nodes[self.from].command(&["CLUSTER", "GETKEYSINSLOT", &self.slot, "1000000"]);
        keys.lines().map(Into::into).collect()
    }

    /// Moves one key.
    pub fn move_key(&self, key: &str) {
        let port = self.cluster.nodes[self.to].port().to_string();
        let from = &self.cluster.nodes[self.from];
        let mut command = vec!["MIGRATE", "127.0.0.1", &port, key, "0", "5000"];
        if let Some(password) = from.password() {
            command.extend(["AUTH", password]);
        }
        from.command(&command);
    }

    /// Moves all remaining keys.
    pub fn move_keys(&self) {
        for key in self.keys() {
            self.move_key(&key);
        }
    }

    /// Makes the target the owner of the slot, and waits until all nodes know. All keys must have been moved.
    pub fn finish(self) {
        let id = self.cluster.id(self.to);
        let others = (0..self.cluster.nodes.len()).filter(|node| ![self.from, self.to].contains(node));
        for node in [self.to, self.from].into_iter().chain(others) {
            let node = &self.cluster.nodes[node];
            if node.is_running() && node.info_field("replication", "role") == "master" {
                node.command(&["CLUSTER", "SETSLOT", &self.slot, "NODE", &id]);
            }
        }
        self.cluster.wait_until_ok();
    }
}
