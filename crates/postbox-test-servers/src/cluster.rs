//! A Redis Cluster.

use std::time::Duration;

use crate::supervisor::eventually;
use crate::{Proxy, Redis, Reply};

const SLOTS: usize = 16_384;

/// A cluster whose primaries share the slots evenly. Nodes are numbered: the primaries first, then the replicas, where
/// replica `primaries + i` copies primary `i % primaries`. Fail-overs change roles, not numbers; they need a majority of
/// the primaries, so three at least.
pub struct RedisCluster {
    nodes: Vec<Redis>,
    proxies: Vec<Proxy>,
}

/// What a [`RedisCluster`] is started with.
#[must_use]
pub struct RedisClusterBuilder {
    primaries: usize,
    replicas: usize,
    node_timeout: Duration,
    proxied: bool,
    password: Option<String>,
    config: Vec<(String, String)>,
}

/// What one node thinks of one.
#[derive(Debug)]
struct View {
    node: usize,
    /// The node that it copies.
    copies: Option<usize>,
    slots: Vec<(usize, usize)>,
}

impl RedisClusterBuilder {
    /// How many nodes have slots; 3.
    pub fn primaries(mut self, primaries: usize) -> Self {
        self.primaries = primaries;
        self
    }

    /// How many replicas each of them has; none.
    pub fn replicas(mut self, replicas_per_primary: usize) -> Self {
        self.replicas = replicas_per_primary;
        self
    }

    /// How long a node must be silent to count as down; one second. A busy machine needs more, unless the test is about
    /// fail-over.
    pub fn node_timeout(mut self, timeout: Duration) -> Self {
        self.node_timeout = timeout;
        self
    }

    /// With a [`Proxy`] before each node, which is where the cluster sends its clients. Replicas follow through them as
    /// well, but only [`Proxy::refuse`] has an effect on them.
    pub fn proxied(mut self) -> Self {
        self.proxied = true;
        self
    }

    /// The password of the default user.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.into());
        self
    }

    /// A line of redis.conf for every node.
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.config.push((name.into(), value.into()));
        self
    }

    /// Starts it, and waits until every node says that all is well.
    pub fn start(self) -> RedisCluster {
        let nodes: Vec<Redis> = std::thread::scope(|scope| {
            let start = || {
                let mut node = Redis::builder()
                    .cluster()
                    .config("cluster-node-timeout", "1000")
                    .config("cluster-replica-validity-factor", "0")
                    // A replica that has not heard anything yet does not exist for clients.
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
            // Everyone meets everyone, which is faster than waiting for the rumours.
            for other in &cluster.nodes[..index] {
                let (port, bus) = (other.port().to_string(), other.bus_port().to_string());
                node.command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
            }
        }
        for replica in self.primaries..cluster.nodes.len() {
            let primary = cluster.id(replica % self.primaries);
            eventually("a replica's introduction", || {
                match cluster.nodes[replica].try_command(&["CLUSTER", "REPLICATE", &primary]) {
                    Ok(Reply::Text(_)) => Ok(()),
                    // It has not met its primary yet.
                    other => Err(format!("{other:?}")),
                }
            });
        }
        cluster.wait_until_ok();
        // Nodes talk the less, the longer this is: it would have taken them longer to get here.
        for node in &cluster.nodes {
            node.configure("cluster-node-timeout", &self.node_timeout.as_millis().to_string());
        }
        cluster
    }
}

impl RedisCluster {
    /// A cluster that notices a silent node after one second.
    pub fn start(primaries: usize, replicas_per_primary: usize) -> RedisCluster {
        RedisCluster::builder().primaries(primaries).replicas(replicas_per_primary).start()
    }

    /// A cluster with options.
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

    /// `redis+cluster://` with the password and all nodes, or their proxies.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.ports().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("redis+cluster://{}{}", self.nodes[0].credentials(), hosts.join(","))
    }

    /// `redis://` with the password, for each node or its proxy.
    pub fn urls(&self) -> Vec<String> {
        let credentials = self.nodes[0].credentials();
        self.ports().map(|port| format!("redis://{credentials}127.0.0.1:{port}")).collect()
    }

    fn ports(&self) -> impl Iterator<Item = u16> + '_ {
        (0..self.nodes.len()).map(|node| self.port(node))
    }

    /// Where clients of a node connect.
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

    /// The proxy before a node.
    pub fn proxy(&self, node: usize) -> &Proxy {
        self.proxies.get(node).expect("a cluster that was built with proxies")
    }

    /// The slot of a key.
    pub fn slot_of(&self, key: &str) -> usize {
        self.running().command(&["CLUSTER", "KEYSLOT", key]).parse().expect("a slot")
    }

    /// The number of the node that has a slot.
    pub fn primary_of_slot(&self, slot: usize) -> usize {
        let views = self.views(self.running()).expect("a view of the cluster");
        let owner = views.iter().find(|view| view.slots.iter().any(|(first, last)| (*first..=*last).contains(&slot)));
        owner.expect("a slot that a node has").node
    }

    /// The number of the node that has a key.
    pub fn primary_of_key(&self, key: &str) -> usize {
        self.primary_of_slot(self.slot_of(key))
    }

    /// The numbers of the nodes that copy a node.
    pub fn replicas_of(&self, primary: usize) -> Vec<usize> {
        let views = self.views(self.running()).expect("a view of the cluster");
        views.iter().filter(|view| view.copies == Some(primary)).map(|view| view.node).collect()
    }

    /// Kills a node with SIGKILL.
    pub fn kill(&self, node: usize) {
        self.nodes[node].kill();
    }

    /// Starts a node again, with its files.
    pub fn restart(&self, node: usize) {
        self.nodes[node].restart();
    }

    /// Waits until all nodes that run say that all is well, agree on which node has which slot, give each slot to a node that
    /// runs, and have their copies.
    pub fn wait_until_ok(&self) {
        eventually("a cluster that is well", || {
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
                    let copies_one_that_runs = view.copies.is_some_and(|primary| running.contains(&primary));
                    let wrong = match running.contains(&view.node) {
                        true => view.slots.is_empty() && !copies_one_that_runs,
                        false => !view.slots.is_empty(),
                    };
                    if wrong {
                        return Err(format!("node {index} thinks {view:?}, and only {running:?} run"));
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
                    return Err(format!("{agreed:?} and, for node {index}, {slots:?}"));
                }
                // What clients are told; replicas appear in it a little later than in the views.
                let told = ask(&["CLUSTER", "SLOTS"]).map_err(|error| error.to_string())?;
                if let Some(port) = running.iter().map(|node| self.port(*node).to_string()).find(|port| {
                    // No slot has so high a number.
                    !told.lines().any(|line| line == port)
                }) {
                    return Err(format!("node {index} does not tell of {port}: {told}"));
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
        assert_ne!(from, to, "the slot is there already");
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
        self.nodes.iter().find(|node| node.is_running()).expect("a node that runs")
    }

    /// What a node thinks of all that it knows.
    fn views(&self, node: &Redis) -> Result<Vec<View>, String> {
        let table = node.try_command(&["CLUSTER", "NODES"]).map_err(|error| error.to_string())?.to_string();
        // id ip:port@bus-port flags primary ping pong epoch link slots…
        let rows: Vec<Vec<&str>> = table.lines().map(|row| row.split(' ').collect()).collect();
        let number = |row: &Vec<&str>| {
            let bus: u16 = row.get(1)?.split(['@', ',']).nth(1)?.parse().ok()?;
            self.nodes.iter().position(|node| node.bus_port() == bus)
        };
        rows.iter()
            .map(|row| {
                let node = number(row).ok_or_else(|| format!("a stranger in {table}"))?;
                let copies = rows.iter().find(|primary| primary[0] == row[3]).and_then(number);
                // In brackets are slots on their way.
                let slots = row[8..].iter().filter(|slots| !slots.starts_with('[')).map(|slots| {
                    let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
                    (first.parse().expect("a slot"), last.parse().expect("a slot"))
                });
                Ok(View { node, copies, slots: slots.collect() })
            })
            .collect()
    }
}

/// A slot between two nodes: the old one has it and redirects (ASK) for keys that it does not have any more.
#[must_use = "the slot stays between the nodes"]
pub struct SlotMigration<'a> {
    cluster: &'a RedisCluster,
    slot: String,
    from: usize,
    to: usize,
}

impl SlotMigration<'_> {
    /// The keys that have not been moved.
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

    /// Moves all keys that are there.
    pub fn move_keys(&self) {
        for key in self.keys() {
            self.move_key(&key);
        }
    }

    /// Gives the slot to the new node, and waits until all know. The keys must have been moved.
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
