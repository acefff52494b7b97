//! Every rule of the documented table, with its message.

use super::*;

/// Invalid drafts, each with the whole message.
fn invalid_drafts(home: &SpecTestHome) -> Vec<(SpecDraft, &'static str)> {
    let mounts = |mounts: &[DraftMount]| SpecDraft { mounts: mounts.to_vec(), ..minimal() };
    let copies = |copies: &[DraftCopy]| SpecDraft { copies: copies.to_vec(), ..minimal() };
    let port = |container_port, host_port, protocol| DraftPort { container_port, host_port, protocol };
    let ports = |ports: &[DraftPort]| SpecDraft { ports: ports.to_vec(), ..minimal() };
    let services = |services: &[DraftService]| SpecDraft { services: services.to_vec(), ..minimal() };
    let healthcheck = |test: Vec<String>| {
        let healthcheck = Some(DraftHealthcheck { test, ..DraftHealthcheck::default() });
        services(&[DraftService { healthcheck, ..service("db") }])
    };
    let env = |key: &str| SpecDraft { envs: [(key.to_owned(), String::new())].into(), ..minimal() };
    let cpu = |text: &str| SpecDraft { cpu_limit: text.into(), ..minimal() };
    let memory = |text: &str| SpecDraft { memory_limit: text.into(), ..minimal() };
    let tools = |tools: Vec<String>| SpecDraft { builtin_tools: tools, ..minimal() };
    let idle = |seconds, nanos| SpecDraft { idle_ttl: Some(DraftDuration { seconds, nanos }), ..minimal() };
    let file = home.text("file");
    vec![
        (SpecDraft::default(), "image: is missing"),
        (SpecDraft { image: " ".into(), ..SpecDraft::default() }, "image: is missing"),
        (SpecDraft { image: "a b".into(), ..SpecDraft::default() }, r#"image: "a b" is not an image reference"#),
        (idle(-1, 0), "idle_ttl: is negative"),
        (idle(0, -1), "idle_ttl: is negative"),
        (idle(0, 1_000_000_000), "idle_ttl: is not a duration"),
        (idle(i64::MAX, 0), "idle_ttl: is not a duration"),
        (SpecDraft { gpus: "1".into(), ..minimal() }, r#"gpus: "1" is neither empty nor "all""#),
        (env("AGENTS_SANDBOX_SUPPLEMENTAL_GROUPS"), "envs: AGENTS_SANDBOX_SUPPLEMENTAL_GROUPS is reserved"),
        (env(""), r#"envs: "" is not a valid variable name"#),
        (env("A=B"), r#"envs: "A=B" is not a valid variable name"#),
        (env("A\0"), r#"envs: "A\0" is not a valid variable name"#),
        (
            SpecDraft { envs: [("A".to_owned(), "\0".to_owned())].into(), ..minimal() },
            r#"envs: the value of "A" contains a NUL byte"#,
        ),
        (mounts(&[mount("", "/a")]), "mounts[0].source: is missing"),
        (mounts(&[mount("a/b", "/a")]), r#"mounts[0].source: "a/b" is not an absolute path of the host"#),
        (
            mounts(&[mount("~root/x", "/a")]),
            r#"mounts[0].source: "~root/x" is the home of another user; use an absolute path, or one below "~/""#,
        ),
        (mounts(&[mount("~/nothing", "/a")]), r#"mounts[0].source: "~/nothing" does not exist"#),
        (mounts(&[mount("~/file/nothing", "/a")]), r#"mounts[0].source: "~/file/nothing" does not exist"#),
        (mounts(&[mount("~/link", "/a")]), r#"mounts[0].source: "~/link" is a symbolic link; use its target"#),
        (mounts(&[mount("~/dirlink/", "/a")]), r#"mounts[0].source: "~/dirlink/" is a symbolic link; use its target"#),
        (mounts(&[mount("~/pipe", "/a")]), r#"mounts[0].source: "~/pipe" is not a file, a directory or a socket"#),
        (mounts(&[mount(&file, "")]), "mounts[0].target: is missing"),
        (mounts(&[mount(&file, "a")]), r#"mounts[0].target: "a" is not an absolute path and does not start with "~/""#),
        (
            mounts(&[mount(&file, "~user/a")]),
            r#"mounts[0].target: "~user/a" is not an absolute path and does not start with "~/""#,
        ),
        (mounts(&[mount(&file, "/a/../b")]), r#"mounts[0].target: "/a/../b" contains "..""#),
        (mounts(&[mount(&file, "//.")]), "mounts[0].target: is the root of the sandbox"),
        (
            mounts(&[mount(&file, "/a"), mount(&file, "/b"), mount(&file, "//a/./")]),
            r#"mounts[2].target: "/a" is used twice"#,
        ),
        (copies(&[copy("~/socket", "/a")]), r#"copies[0].source: "~/socket" is not a file or a directory"#),
        (copies(&[copy("~/link", "/a")]), r#"copies[0].source: "~/link" is a symbolic link; use its target"#),
        (copies(&[copy("/", "/a")]), "copies[0].source: is the root of the host"),
        (copies(&[copy("//.", "/a")]), "copies[0].source: is the root of the host"),
        (copies(&[copy(&file, "a")]), r#"copies[0].target: "a" is not an absolute path and does not start with "~/""#),
        (
            SpecDraft { copies: vec![copy(&file, "/home/agbox")], ..mounts(&[mount(&file, "~")]) },
            r#"copies[0].target: "/home/agbox" is used twice"#,
        ),
        (ports(&[port(0, 80, 0)]), "ports[0].container_port: 0 is not between 1 and 65535"),
        (ports(&[port(80, 65536, 0)]), "ports[0].host_port: 65536 is not between 1 and 65535"),
        (ports(&[port(80, 80, 3)]), "ports[0].protocol: 3 is not a protocol"),
        (ports(&[port(80, 80, -1)]), "ports[0].protocol: -1 is not a protocol"),
        (ports(&[port(80, 80, 0), port(81, 80, 0)]), "ports[1].host_port: 80 is used twice"),
        (services(&[DraftService::default()]), "companion_containers[0].name: is missing"),
        (
            services(&[DraftService { image: String::new(), ..service("db") }]),
            "companion_containers[0].image: is missing",
        ),
        (services(&[service("db"), service("db")]), r#"companion_containers[1].name: "db" is used twice"#),
        (
            services(&[DraftService { post_start_on_primary: words(["true"]), ..service("db") }]),
            "companion_containers[0].post_start_on_primary: needs a healthcheck to wait for",
        ),
        (
            services(&[DraftService {
                post_start_on_primary: words(["true"]),
                healthcheck: Some(DraftHealthcheck { test: words(["NONE"]), ..DraftHealthcheck::default() }),
                ..service("db")
            }]),
            "companion_containers[0].post_start_on_primary: needs a healthcheck to wait for",
        ),
        (
            services(&[DraftService { command: words(["a", ""]), ..service("db") }]),
            "companion_containers[0].command[1]: is empty",
        ),
        (
            services(&[DraftService { cpu_limit: "x".into(), ..service("db") }]),
            r#"companion_containers[0].cpu_limit: "x" is not a number of processors; use at least 0.001, such as "2" or "0.5""#,
        ),
        (healthcheck(Vec::new()), "companion_containers[0].healthcheck.test: is missing"),
        (healthcheck(words(["CMD"])), "companion_containers[0].healthcheck.test: has no command"),
        (healthcheck(words(["CMD-SHELL"])), "companion_containers[0].healthcheck.test: has no command"),
        (
            healthcheck(words(["NONE", "x"])),
            r#"companion_containers[0].healthcheck.test: takes no arguments after "NONE""#,
        ),
        (
            healthcheck(words(["true"])),
            r#"companion_containers[0].healthcheck.test: starts with "true"; use "CMD", "CMD-SHELL" or "NONE""#,
        ),
        (SpecDraft { command: words(["sleep", ""]), ..minimal() }, "command[1]: is empty"),
        (SpecDraft { command: words(["a\0"]), ..minimal() }, "command[0]: contains a NUL byte"),
        (cpu("0"), r#"cpu_limit: "0" is not a number of processors; use at least 0.001, such as "2" or "0.5""#),
        (cpu("NaN"), r#"cpu_limit: "NaN" is not a number of processors; use at least 0.001, such as "2" or "0.5""#),
        (
            memory("-1g"),
            r#"memory_limit: "-1g" is not a size; use a number above 0 with a unit, such as "512m" or "1.5GiB""#,
        ),
        (
            SpecDraft { disk_limit: "lots".into(), ..minimal() },
            r#"disk_limit: "lots" is not a size; use a number above 0 with a unit, such as "512m" or "1.5GiB""#,
        ),
        (tools(words([""])), "builtin_tools[0]: is empty"),
        (tools(words(["npm", "npm"])), r#"builtin_tools[1]: "npm" is used twice"#),
        (
            tools(words(["vim"])),
            r#"builtin_tools[0]: "vim" is not a tool; the tools are claude, codex, git, uv, npm, apt, opencode"#,
        ),
        (tools(words(["codex"])), r#"builtin_tools[0]: "HOME/.codex" does not exist"#),
    ]
}

#[test]
fn an_invalid_draft_is_refused_with_the_field_and_the_reason() {
    let home = SpecTestHome::new();
    for (draft, sentence) in invalid_drafts(&home) {
        let refusal = home.check(draft).expect_err(sentence);
        assert_eq!(home.words(&refusal), sentence);
        assert_eq!((refusal.code, refusal.reason), (Code::InvalidArgument, "INVALID_ARGUMENT"), "{sentence}");
        let field = sentence.split_once(": ").unwrap().0;
        assert_eq!(refusal.metadata.get("field").map(String::as_str), Some(field));
    }
}

#[test]
fn what_this_host_does_not_support_has_its_own_reason() {
    let home = SpecTestHome::new();
    for protocol in [1, 2] {
        let ports = vec![DraftPort { container_port: 53, host_port: 53, protocol }];
        let refusal = home.check(SpecDraft { ports, ..minimal() }).unwrap_err();
        assert_eq!((refusal.code, refusal.reason), (Code::InvalidArgument, "PORT_PROTOCOL_UNSUPPORTED"));
    }
    let refusal = home.check(SpecDraft { gpus: "all".into(), ..minimal() }).unwrap_err();
    assert_eq!((refusal.code, refusal.reason), (Code::FailedPrecondition, "GPU_UNAVAILABLE"));
}

#[test]
fn the_first_violated_rule_is_reported() {
    let home = SpecTestHome::new();
    let mut draft = SpecDraft {
        image: String::new(),
        idle_ttl: Some(DraftDuration { seconds: -1, nanos: 0 }),
        gpus: "some".into(),
        envs: [("AGENTS_SANDBOX_SUPPLEMENTAL_GROUPS".to_owned(), "0".to_owned())].into(),
        mounts: vec![mount("relative", "/a")],
        copies: vec![copy("relative", "/a")],
        ports: vec![DraftPort::default()],
        services: vec![DraftService::default()],
        command: words([""]),
        cpu_limit: "x".into(),
        memory_limit: "x".into(),
        disk_limit: "x".into(),
        builtin_tools: words(["vim"]),
        ..SpecDraft::default()
    };
    type Fix = fn(&mut SpecDraft);
    let order: [(&str, Fix); 13] = [
        ("image", |draft| draft.image = "host".into()),
        ("idle_ttl", |draft| draft.idle_ttl = None),
        ("gpus", |draft| draft.gpus.clear()),
        ("envs", |draft| draft.envs.clear()),
        ("mounts[0].source", |draft| draft.mounts.clear()),
        ("copies[0].source", |draft| draft.copies.clear()),
        ("ports[0].container_port", |draft| draft.ports.clear()),
        ("companion_containers[0].name", |draft| draft.services.clear()),
        ("command[0]", |draft| draft.command.clear()),
        ("cpu_limit", |draft| draft.cpu_limit.clear()),
        ("memory_limit", |draft| draft.memory_limit.clear()),
        ("disk_limit", |draft| draft.disk_limit.clear()),
        ("builtin_tools[0]", |draft| draft.builtin_tools.clear()),
    ];
    for (field, fix) in order {
        assert_eq!(home.check(draft.clone()).unwrap_err().metadata["field"], field);
        fix(&mut draft);
    }
    assert!(home.check(draft).is_ok());
}

#[test]
fn a_valid_draft_becomes_the_spec() {
    let home = SpecTestHome::new();
    let healthcheck = DraftHealthcheck {
        test: words(["CMD-SHELL", "true"]),
        interval: Some(DraftDuration { seconds: 1, nanos: 500_000_000 }),
        retries: 3,
        ..DraftHealthcheck::default()
    };
    let db = DraftService {
        healthcheck: Some(healthcheck),
        post_start_on_primary: words(["psql"]),
        memory_limit: "1g".into(),
        ..service("db")
    };
    let spec = home
        .check(SpecDraft {
            mounts: vec![
                DraftMount { writable: true, ..mount("~/socket", "~/s") },
                mount(home.text("dirlink/below/"), "//given/./space/"),
            ],
            copies: vec![copy("~", "/")],
            labels: [(String::new(), "\u{1f4da}\0".to_owned())].into(),
            idle_ttl: Some(DraftDuration { seconds: 0, nanos: 0 }),
            ports: vec![
                DraftPort { container_port: 80, host_port: 8080, protocol: 0 },
                DraftPort { container_port: 80, host_port: 8081, protocol: 0 },
            ],
            cpu_limit: "1.5".into(),
            memory_limit: "512m".into(),
            services: vec![db],
            ..minimal()
        })
        .unwrap();
    assert_eq!(spec.mounts[0].source, home.path("socket"));
    assert_eq!(spec.mounts[0].target, "/home/agbox/s");
    assert_eq!(
        spec.mounts[1].source,
        home.path("dir/below"),
        "the request may contain links, the stored path has none"
    );
    assert_eq!(spec.mounts[1].target, "/given/space");
    assert_eq!((spec.copies[0].source.clone(), spec.copies[0].target.as_str()), (home.path(""), "/"));
    assert_eq!(spec.labels.len(), 1);
    assert_eq!(spec.idle_ttl, Some(std::time::Duration::ZERO));
    assert_eq!(spec.ports.len(), 2);
    assert_eq!(spec.limits, super::super::Limits { cpu_millis: Some(1500), memory: Some(512 << 20), disk: None });
    assert_eq!(spec.services[0].limits.memory, Some(1 << 30));
    let text = serde_json::to_string(&spec).unwrap();
    assert_eq!(serde_json::from_str::<Spec>(&text).unwrap(), spec);
}
