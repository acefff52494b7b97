//! Merging a request over a file.

use carrel_store::Pairs;

use super::super::RestartPolicy;
use super::*;

#[test]
fn a_request_is_merged_over_a_file() {
    let pairs = |pairs: &[(&str, &str)]| -> Pairs {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let port = |host_port| DraftPort { container_port: 80, host_port, protocol: 0 };
    let base = SpecDraft {
        image: "base".into(),
        mounts: vec![mount("/base", "/a")],
        copies: vec![copy("/base", "/b")],
        builtin_tools: words(["git", "uv"]),
        services: vec![service("base")],
        labels: pairs(&[("a", "base"), ("b", "base")]),
        envs: pairs(&[("a", "base"), ("b", "base")]),
        idle_ttl: Some(DraftDuration { seconds: 1, nanos: 0 }),
        ports: vec![port(1)],
        command: words(["base", "command"]),
        cpu_limit: "1".into(),
        memory_limit: "1g".into(),
        disk_limit: "1g".into(),
        gpus: "all".into(),
        restart: Some(RestartPolicy::No),
    };
    let over = SpecDraft {
        image: "over".into(),
        mounts: vec![mount("/over", "/a")],
        copies: vec![copy("/over", "/c")],
        builtin_tools: words(["uv", "npm"]),
        services: vec![service("over")],
        labels: pairs(&[("b", ""), ("c", "over")]),
        envs: pairs(&[("b", "over")]),
        idle_ttl: Some(DraftDuration::default()),
        ports: vec![port(2)],
        command: words(["over"]),
        cpu_limit: "2".into(),
        restart: Some(RestartPolicy::OnBoot),
        ..SpecDraft::default()
    };
    let expected = SpecDraft {
        image: "over".into(),
        mounts: vec![mount("/base", "/a"), mount("/over", "/a")],
        copies: vec![copy("/base", "/b"), copy("/over", "/c")],
        builtin_tools: words(["git", "uv", "npm"]),
        services: vec![service("base"), service("over")],
        labels: pairs(&[("a", "base"), ("b", ""), ("c", "over")]),
        envs: pairs(&[("a", "base"), ("b", "over")]),
        idle_ttl: Some(DraftDuration::default()),
        ports: vec![port(1), port(2)],
        command: words(["over"]),
        cpu_limit: "2".into(),
        memory_limit: "1g".into(),
        disk_limit: "1g".into(),
        gpus: "all".into(),
        restart: Some(RestartPolicy::OnBoot),
    };
    assert_eq!(over.over(base), expected);
}

#[test]
fn the_same_target_in_both_is_a_conflict() {
    let home = SpecTestHome::new();
    let base = SpecDraft { mounts: vec![mount("~/file", "/a")], ..minimal() };
    let over = SpecDraft { mounts: vec![mount("~/dir", "/a")], ..SpecDraft::default() };
    assert_eq!(home.check(over.over(base)).unwrap_err().message, r#"mounts[1].target: "/a" is used twice"#);
}

/// A draft of few values, so that two of them have much in common.
fn generated(seed: &[u8; 16]) -> SpecDraft {
    let text = |index: usize| ["", "a", "b", "c"][usize::from(seed[index] % 4)].to_owned();
    let list = |index: usize| {
        let first = usize::from(seed[index + 1]);
        (first..first + usize::from(seed[index] % 3)).map(|number| ["a", "b", "c"][number % 3].to_owned())
    };
    let pairs = |index: usize| list(index).map(|key| (key, text(index + 1))).collect();
    SpecDraft {
        image: text(0),
        mounts: list(1).map(|source| mount(source, "/")).collect(),
        copies: list(2).map(|source| copy(source, "/")).collect(),
        builtin_tools: list(3).collect(),
        services: list(4).map(|name| service(&name)).collect(),
        labels: pairs(5),
        envs: pairs(6),
        idle_ttl: seed[7].is_multiple_of(2).then(|| DraftDuration { seconds: i64::from(seed[7]), nanos: 0 }),
        ports: list(8).map(|_| DraftPort::default()).collect(),
        command: list(9).collect(),
        cpu_limit: text(11),
        memory_limit: text(12),
        disk_limit: text(13),
        gpus: text(14),
        restart: [None, Some(RestartPolicy::No), Some(RestartPolicy::OnBoot)][usize::from(seed[15] % 3)],
    }
}

#[test]
fn merging_is_associative() {
    bolero::check!().with_type::<[[u8; 16]; 3]>().for_each(|[a, b, c]| {
        let [a, b, c] = [generated(a), generated(b), generated(c)];
        assert_eq!(a.clone().over(b.clone()).over(c.clone()), a.clone().over(b.clone().over(c)));
        assert_eq!(a.clone().over(SpecDraft::default()), a);
        assert_eq!(SpecDraft::default().over(b.clone()), b);
    });
}
