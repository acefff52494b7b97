//! Tests of drafts in YAML.

use super::super::RestartPolicy;
use super::super::yaml::parse;
use super::*;

#[test]
fn a_file_has_all_fields_of_a_request() {
    let file = r#"
image: host
mounts:
  - {source: ~/work, target: /workspace, writable: true}
  - source: /data
    target: /data
copies:
  - source: /src
    target: /dst
    exclude_patterns: ["*.log", node_modules]
ports:
  - {container_port: 80, host_port: 8080}
  - {container_port: 53, host_port: 5353, protocol: udp}
builtin_tools: [git, uv]
companion_containers:
  redis: {image: redis}
  db:
    image: postgres
    envs: {POSTGRES_PASSWORD: 1234}
    healthcheck:
      test: [CMD, pg_isready]
      interval: 1.5s
      timeout: 500ms
      retries: 3
      start_period: 1m
      start_interval: 0
    post_start_on_primary: [psql -c ""]
    command: [postgres, -c, fsync=off]
    cpu_limit: 1
    memory_limit: 1g
    disk_limit: 2g
labels: {team: a, empty: , yes: no}
envs:
  LANG: C.UTF-8
  NUMBER: 007
idle_ttl: 1h30m
command: [sleep, 60]
cpu_limit: 1.5
memory_limit: 512m
disk_limit: 4g
gpus: all
restart: on-boot
"#;
    let pairs = |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
    let seconds = |seconds| Some(DraftDuration { seconds, nanos: 0 });
    let millis = |millis: i32| DraftDuration { seconds: i64::from(millis / 1000), nanos: millis % 1000 * 1_000_000 };
    let db = DraftService {
        name: "db".into(),
        image: "postgres".into(),
        envs: pairs(&[("POSTGRES_PASSWORD", "1234")]),
        healthcheck: Some(DraftHealthcheck {
            test: words(["CMD", "pg_isready"]),
            interval: Some(millis(1500)),
            timeout: Some(millis(500)),
            retries: 3,
            start_period: seconds(60),
            start_interval: seconds(0),
        }),
        post_start_on_primary: words([r#"psql -c """#]),
        command: words(["postgres", "-c", "fsync=off"]),
        cpu_limit: "1".into(),
        memory_limit: "1g".into(),
        disk_limit: "2g".into(),
    };
    let expected = SpecDraft {
        image: "host".into(),
        mounts: vec![DraftMount { writable: true, ..mount("~/work", "/workspace") }, mount("/data", "/data")],
        copies: vec![DraftCopy { exclude_patterns: words(["*.log", "node_modules"]), ..copy("/src", "/dst") }],
        builtin_tools: words(["git", "uv"]),
        services: vec![db, DraftService { image: "redis".into(), ..service("redis") }],
        labels: pairs(&[("empty", ""), ("team", "a"), ("yes", "no")]),
        envs: pairs(&[("LANG", "C.UTF-8"), ("NUMBER", "007")]),
        idle_ttl: seconds(5400),
        ports: vec![
            DraftPort { container_port: 80, host_port: 8080, protocol: 0 },
            DraftPort { container_port: 53, host_port: 5353, protocol: 1 },
        ],
        command: words(["sleep", "60"]),
        cpu_limit: "1.5".into(),
        memory_limit: "512m".into(),
        disk_limit: "4g".into(),
        gpus: "all".into(),
        restart: Some(RestartPolicy::OnBoot),
    };
    assert_eq!(parse(file.as_bytes()), Ok(expected));
}

#[test]
fn a_file_may_be_empty() {
    for nothing in ["", "# a comment\n", "---\n", "{}", "mounts:\nlabels: ~\nimage: null\ncommand:\nidle_ttl:\n"] {
        assert_eq!(parse(nothing.as_bytes()), Ok(SpecDraft::default()), "{nothing:?}");
    }
    assert_eq!(parse(b"idle_ttl: 0").unwrap().idle_ttl, Some(DraftDuration::default()));
    assert_eq!(parse(b"restart: no").unwrap().restart, Some(RestartPolicy::No));
    assert!(parse(b"restart: always").unwrap_err().message.contains("unknown variant `always`"));
    assert_eq!(parse(b"companion_containers: {db: }").unwrap().services[0].name, "db");
}

#[test]
fn an_invalid_file_is_refused_with_a_message() {
    let wrong = [
        ("image: [", "did not find expected node content at line 2 column 1, while parsing a flow node"),
        ("- host", "invalid type: sequence, expected a map"),
        (
            "imgae: host",
            "unknown field `imgae`, expected one of `image`, `mounts`, `copies`, `ports`, `builtin_tools`, `companion_containers`, `labels`, `envs`, `idle_ttl`, `command`, `cpu_limit`, `memory_limit`, `disk_limit`, `gpus`, `restart`",
        ),
        (
            "mounts: [{source: /a, target: /b, readonly: true}]",
            "mounts[0]: unknown field `readonly`, expected one of `source`, `target`, `writable` at line 1 column 35",
        ),
        (
            "companion_containers: [{name: db}]",
            "companion_containers: invalid type: sequence, expected a map at line 1 column 23",
        ),
        ("idle_ttl: 10", r#"idle_ttl: "10" is not a duration; use numbers with units, such as "1h30m", "1.5s" or "0""#),
        (
            "idle_ttl: soon",
            r#"idle_ttl: "soon" is not a duration; use numbers with units, such as "1h30m", "1.5s" or "0""#,
        ),
        (
            "companion_containers: {db: {healthcheck: {timeout: 1}}}",
            r#"companion_containers."db".healthcheck.timeout: "1" is not a duration; use numbers with units, such as "1h30m", "1.5s" or "0""#,
        ),
        ("command: []", "command: is empty; leave it out, or give a command"),
        ("command: [a, '']", "command[1]: is empty"),
        ("command: [a, ~]", "command[1]: is empty"),
        (
            "companion_containers: {db: {command: []}}",
            r#"companion_containers."db".command: is empty; leave it out, or give a command"#,
        ),
        ("ports: [{protocol: icmp}]", r#"ports: "icmp" is not a protocol; use "tcp", "udp" or "sctp""#),
        (
            "ports: [{host_port: -1}]",
            "ports[0].host_port: invalid type: integer `-1`, expected u32 at line 1 column 21",
        ),
        ("labels: {a: 1, a: 2}", r#"labels: the key "a" is used twice at line 1 column 9"#),
        ("image: a\nimage: b", r#"the key "image" is used twice"#),
        ("image: a\n---\nimage: b", "deserializing from YAML containing more than one document is not supported"),
        ("image: !path a", "image: invalid type: enum, expected text, a number, a list or a map at line 1 column 8"),
        ("image: *a", "unknown anchor at line 1 column 8"),
    ];
    for (file, words) in wrong {
        let refusal = parse(file.as_bytes()).expect_err(file);
        assert_eq!(refusal.message, format!("config_yaml: {words}"));
        assert_eq!((refusal.code, refusal.reason), (Code::InvalidArgument, "INVALID_ARGUMENT"));
        assert_eq!(refusal.metadata["field"], "config_yaml");
    }
    assert!(parse(b"image: \xff").is_err());
}

#[test]
fn the_cost_of_a_file_is_bounded() {
    let long = format!("image: {}", "a".repeat(256 << 10));
    assert_eq!(parse(long.as_bytes()).unwrap_err().message, "config_yaml: is longer than 256 KiB");
    let deep = |levels: usize| format!("image: {}a{}", "[".repeat(levels), "]".repeat(levels));
    assert!(parse(deep(15).as_bytes()).unwrap_err().message.contains("expected a string"));
    for levels in [16, 100] {
        let message = parse(deep(levels).as_bytes()).unwrap_err().message;
        assert!(message.contains("is more than 16 levels deep"), "{message}");
    }
    for many in ["[", "{", "[]"] {
        let message = parse(many.repeat(100_000).as_bytes()).unwrap_err().message;
        assert_eq!(message, "config_yaml: has more than 1000 opening brackets");
    }
    // As many words within as many brackets as are allowed, and nested blocks.
    for odd in ["? ", "- ", "a:\n- ", "&a ", "a, "] {
        let brackets = if odd == "a, " { 1000 } else { 0 };
        let file = format!("{}{}", "[".repeat(brackets), odd.repeat(((256 << 10) - brackets) / odd.len()));
        assert!(parse(file.as_bytes()).is_err(), "{odd:?}");
    }
    // Text that is defined once and used often; lists of lists that double each time; a list within itself.
    let often = format!("image: &a {}\ncommand: [{}]", "a".repeat(100 << 10), "*a, ".repeat(20));
    let doubled: String = (1..20).map(|level| format!("k{level}: &k{level} [*k{0}, *k{0}]\n", level - 1)).collect();
    let doubled = format!("k0: &k0 [a, a]\n{doubled}");
    for bomb in [often.as_str(), &doubled] {
        let message = parse(bomb.as_bytes()).unwrap_err().message;
        assert!(message.contains("its aliases make it too large") || message.contains("repetition limit"), "{message}");
    }
    assert!(parse(b"command: &a [*a]").is_err());
    let fair = "image: &i host\ncompanion_containers: {db: {image: *i}}";
    assert_eq!(parse(fair.as_bytes()).unwrap().services[0].image, "host");
}

#[test]
fn messages_about_a_file_are_short() {
    let key = "k".repeat(100_000);
    assert!(parse(format!("{key}: 1").as_bytes()).unwrap_err().message.len() < 1000);
    assert!(parse(format!("idle_ttl: {key}").as_bytes()).unwrap_err().message.len() < 1000);
    assert!(parse(format!("{key}: 1\n{key}: 2").as_bytes()).unwrap_err().message.len() < 1000);
}

#[test]
fn no_bytes_make_the_parser_panic() {
    bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
        if let Ok(draft) = parse(bytes) {
            let _ = draft.check(&Host::default(), &OTHER);
        }
    });
}

/// Files of known pieces in random order.
#[test]
fn no_file_of_known_pieces_makes_the_parser_panic() {
    const PIECES: &[&str] = &[
        "image",
        "mounts",
        "ports",
        "command",
        "companion_containers",
        "idle_ttl",
        ": ",
        ":\n",
        "\n",
        "  ",
        "- ",
        "[",
        "]",
        "{",
        "}",
        ", ",
        "&a ",
        "*a",
        "~",
        "''",
        "\"",
        "1h",
        "-1",
        "udp",
        "healthcheck",
        "test",
        "!!str ",
        "---\n",
        "<<",
        "? ",
        "|\n",
        "host",
    ];
    bolero::check!().with_type::<Vec<u8>>().for_each(|choices| {
        let file: String = choices.iter().map(|choice| PIECES[usize::from(*choice) % PIECES.len()]).collect();
        if let Ok(draft) = parse(file.as_bytes()) {
            let _ = draft.check(&Host::default(), &OTHER);
        }
    });
}
