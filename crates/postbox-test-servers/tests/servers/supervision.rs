//! Servers end with the process that started them.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use postbox_test_servers::{Ministack, Redis};

/// Runs only in a child process of the next test: starts servers, prints their process ids and waits to be killed.
#[test]
fn child_that_is_killed() {
    if std::env::var_os("POSTBOX_TEST_ROLE").is_none() {
        return;
    }
    let servers = [Redis::start(), Redis::start()];
    servers[1].pause();
    let ministack = Ministack::start();
    let redis = servers.iter().map(|redis| (redis.pid(), redis.folder()));
    for (pid, folder) in redis.chain([(ministack.pid(), ministack.folder())]) {
        println!("\nserver {pid} {}", folder.display());
    }
    loop {
        std::thread::park();
    }
}

#[test]
fn servers_die_with_the_process_that_started_them() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "supervision::child_that_is_killed", "--nocapture"])
        .env("POSTBOX_TEST_ROLE", "child")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let servers: Vec<(String, String)> = lines
        .filter_map(|line| {
            let (pid, folder) = line.strip_prefix("server ")?.split_once(' ')?;
            Some((format!("/proc/{pid}"), folder.to_owned()))
        })
        .take(3)
        .collect();
    let exists = |path: &str| std::path::Path::new(path).exists();
    assert_eq!(servers.len(), 3);
    assert!(servers.iter().all(|(process, folder)| exists(process) && exists(folder)));
    child.kill().unwrap();
    child.wait().unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while servers.iter().any(|(process, folder)| exists(process) || exists(folder)) {
        assert!(Instant::now() < end, "they live on: {servers:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_dropped_server_is_killed() {
    let redis = Redis::start();
    let (process, folder) = (format!("/proc/{}", redis.pid()), redis.folder().to_owned());
    assert!(folder.exists());
    drop(redis);
    assert!(!std::path::Path::new(&process).exists() && !folder.exists());
}
