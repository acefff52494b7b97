//! Valid and invalid configurations.

use super::*;

const PATH: &str = "/c.toml";

fn parsed(text: &str) -> Config {
    Config::parse(Path::new(PATH), text).unwrap()
}

fn refused(text: &str) -> String {
    Config::parse(Path::new(PATH), text).unwrap_err().to_string()
}

const EVERYTHING: &str = include_str!("everything.toml");

const DEFAULTS: &str = r#"[runtime]
idle_ttl = "10m"
cleanup_ttl = "15d"
grace = "2s"

[log]
level = "info"
format = "auto"
max_size = 10485760
keep = 3

[artifacts]
exec_output_template = "{sandbox_id}/{exec_id}"

[limits]
kept_sandboxes = 4096
user_sandboxes = 1024
kept_specs = 67108864
pids = 1024
host_free = 1073741824
sandbox_disk = 10737418240
sandbox_inodes = 1048576

[retention]
deleted_count = 10000
events_age = "0"
events_count = 100000
execs_age = "0"
execs_count = 10000
logs_age = "0"
orphans_age = "30d"

[host]
allow = []
"#;

//= promises.control-plane.kept-sandboxes
//= promises.control-plane.kept-specs
#[test]
fn an_empty_file_is_the_default_configuration() {
    assert_eq!(parsed(""), Config::default());
    assert_eq!(Config::default().to_string(), DEFAULTS);
}

#[test]
fn the_printed_configuration_parses_to_the_same_value() {
    assert_eq!(parsed(EVERYTHING).to_string(), EVERYTHING);
    assert_eq!(parsed(DEFAULTS), Config::default());
}

#[test]
fn an_unlimited_output_is_a_limit_that_is_never_reached() {
    let quota = |text: &str| parsed(text).retention.output_quota();
    assert_eq!(quota(""), None);
    assert_eq!(quota("[retention]\noutput = \"64k\""), Some(65_536));
    assert_eq!(quota("[retention]\noutput = 0"), Some(i64::MAX as u64));
}

#[test]
fn the_output_directory_of_a_sandbox_follows_the_template() {
    let home = Path::new("/h");
    assert_eq!(Config::default().log_directory(home, "web1"), Path::new("/h/logs/web1"));
    let config = parsed("[artifacts]\nexec_output_root = \"/l\"\nexec_output_template = \"a/{sandbox_id}/{exec_id}\"");
    assert_eq!(config.log_directory(home, "web1"), Path::new("/l/a/web1"));
}

#[test]
fn the_example_of_the_guide_is_valid() {
    let guide =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/configuration.md"))
            .unwrap();
    let example = guide.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let config = parsed(example);
    assert_eq!((config.limits.memory, config.listen.len()), (Some(16 << 30), 2));
    // The defaults of these are another key, and the default of the supervisor.
    assert_eq!(config.retention.history.deleted_age, Some(config.cleanup_ttl));
    assert_eq!(config.retention.output, Some(carrel_shim_client::messages::JobRetention::default().total_bytes));
    let mut retention = config.retention.clone();
    (retention.history.deleted_age, retention.output) = (None, None);
    let defaults = Config {
        limits: Config::default().limits,
        log: LogConfig { file: None, ..config.log },
        allow: Vec::new(),
        listen: Vec::new(),
        exec_output_root: None,
        registries: Registries::default(),
        retention,
        ..config
    };
    assert_eq!(defaults, Config::default());
}

#[test]
fn a_size_may_have_a_unit() {
    let limits = parsed("[limits]\nmemory = \"16g\"\nhost_free = \"0\"").limits;
    assert_eq!((limits.memory, limits.host_free), (Some(16 << 30), 0));
}

#[test]
fn an_unknown_key_is_refused_with_its_line_and_the_known_keys() {
    assert_eq!(
        refused("[runtime]\nidle_ttl = \"1m\"\nidel_ttl = \"1m\"\n"),
        "/c.toml, line 3: runtime.idel_ttl: unknown field `idel_ttl`, expected one of `idle_ttl`, `cleanup_ttl`, `log_level`, `grace`"
    );
    for (text, expected) in [
        ("[runtim]\n", "line 1: runtim: unknown field `runtim`, expected one of"),
        ("[log]\nlevle = 1\n", "line 2: log.levle: unknown field `levle`"),
        ("[artifacts]\nx = 1\n", "line 2: artifacts.x: unknown field `x`"),
        ("[limits]\nx = 1\n", "line 2: limits.x: unknown field `x`"),
        ("[host]\nx = 1\n", "line 2: host.x: unknown field `x`"),
        ("[registries.\"r.example\"]\nx = 1\n", "line 2: registries.r.example.x: unknown field `x`"),
        ("[[listen]]\ngrpc = \"unix:/x\"\nport = 1\n", "line 3: listen[0].port: unknown field `port`"),
        ("[[listen]]\n", "line 1: listen[0]: missing field `grpc`"),
        ("runtime = { idel_ttl = 1 }", "line 1: runtime.idel_ttl: unknown field"),
    ] {
        assert!(refused(text).contains(expected), "{text}: {}", refused(text));
    }
    assert!(refused("nonsense").starts_with("/c.toml, line 1: "));
}

#[test]
fn every_invalid_value_is_reported_with_its_key() {
    let time = "expected such as \"10m\", \"1h30m\" or \"0\"";
    let size = "expected a size such as 536870912, \"512m\" or \"1.5GiB\"";
    let path = "expected a path that starts with a slash";
    for (table, key, value, expected) in [
        ("[runtime]", "idle_ttl", "\"-1s\"", format!("\"-1s\" is not valid: {time}")),
        ("[runtime]", "cleanup_ttl", "5", "invalid type: integer `5`, expected such as".to_owned()),
        ("[runtime]", "grace", "\"soon\"", format!("\"soon\" is not valid: {time}")),
        ("[runtime]", "log_level", "\"loud\"", "expected one of error, warn, info, debug, trace".to_owned()),
        ("[log]", "level", "\"loud\"", "expected one of error, warn, info, debug, trace".to_owned()),
        ("[log]", "format", "\"xml\"", "\"xml\" is not valid: expected one of auto, text, json".to_owned()),
        ("[log]", "file", "\"log\"", format!("\"log\" is not valid: {path}")),
        ("[log]", "max_size", "\"big\"", format!("\"big\" is not valid: {size}")),
        ("[log]", "keep", "1001", "1001 is not valid: expected a number from 0 to 1000".to_owned()),
        ("[artifacts]", "exec_output_root", "\"logs\"", format!("\"logs\" is not valid: {path}")),
        (
            "[artifacts]",
            "exec_output_template",
            "\"{exec_id}/x\"",
            "must be relative and end in \"{sandbox_id}".to_owned(),
        ),
        ("[limits]", "sandboxes", "-1", "invalid value: integer `-1`, expected u64".to_owned()),
        ("[limits]", "memory", "\"lots\"", format!("\"lots\" is not valid: {size}")),
        ("[limits]", "sandbox_memory", "-5", format!("-5 is not valid: {size}")),
        ("[limits]", "pids", "0", "0 is not valid: expected a number from 1 to 4294967295".to_owned()),
        ("[limits]", "host_free", "true", "invalid type: boolean `true`, expected a size".to_owned()),
        ("[limits]", "host_free_inodes", "\"5\"", "invalid type: string \"5\", expected u64".to_owned()),
        ("[limits]", "sandbox_disk", "\"1x\"", format!("\"1x\" is not valid: {size}")),
        ("[limits]", "sandbox_inodes", "1.5", "invalid type: floating point `1.5`, expected u64".to_owned()),
        ("[host]", "allow", "[\"srv\"]", format!("\"srv\" is not valid: {path}")),
        ("[[listen]]", "grpc", "\"7443\"", "\"7443\" is not an address: use unix:PATH or tcp".to_owned()),
        ("[[listen]]", "mode", "\"rw\"", "\"rw\" is not valid: expected permissions such as \"0600\"".to_owned()),
        ("[[listen]]", "certificate", "\"c\"", path.to_owned()),
        ("[[listen]]", "key", "\"k\"", path.to_owned()),
        ("[[listen]]", "client_ca", "\"a\"", path.to_owned()),
        ("[[listen]]", "api_key_file", "\"f\"", path.to_owned()),
        ("[registries.\"r.example\"]", "mirrors", "[\"ftp://x\"]", "\"ftp://x\" is not a mirror".to_owned()),
        ("[registries.\"r.example\"]", "insecure", "1", "invalid type: integer `1`, expected a boolean".to_owned()),
        ("[registries.\"r.example\"]", "ca", "\"ca.pem\"", path.to_owned()),
    ] {
        let refused = refused(&format!("{table}\n{key} = {value}\n"));
        let full = match table {
            "[[listen]]" => format!("listen[0].{key}"),
            table => format!("{}.{key}", table.trim_matches(['[', ']']).replace('"', "")),
        };
        assert!(refused.starts_with(&format!("/c.toml, line 2: {full}")), "{full}: {refused}");
        assert!(refused.contains(&expected), "{full}: {refused}");
    }
}

#[test]
fn the_old_key_of_the_log_level_is_used_unless_the_new_one_is_set() {
    assert_eq!(parsed("[runtime]\nlog_level = \"warn\"").log.level, LogLevel::Warn);
    assert_eq!(parsed("[runtime]\nlog_level = \"warn\"\n[log]\nlevel = \"debug\"").log.level, LogLevel::Debug);
}

#[test]
fn an_unreadable_file_of_a_registry_is_reported_with_its_key() {
    let config = parsed("[registries.\"r.example\"]\nca = \"/nowhere/ca.pem\"");
    let error = config.check_files().unwrap_err().to_string();
    assert!(error.contains("registries.r.example.ca: /nowhere/ca.pem: No such file"), "{error}");
}

#[test]
fn a_tcp_listener_needs_authentication_and_a_remote_key_needs_tls() {
    for (keys, problem) in [
        ("", Some("clients would not be authenticated: it needs `api_key_file` or `client_ca`")),
        ("certificate = \"/c\"", Some("a certificate needs its `key`")),
        ("key = \"/k\"", Some("a key needs its `certificate`")),
        ("client_ca = \"/a\"", Some("`client_ca` needs `certificate` and `key`")),
        (
            "certificate = \"/c\"\nkey = \"/k\"",
            Some("clients would not be authenticated: it needs `api_key_file` or `client_ca`"),
        ),
        ("api_key_file = \"/f\"", Some("an API key over the network needs TLS: `certificate` and `key`")),
        ("certificate = \"/c\"\nkey = \"/k\"\napi_key_file = \"/f\"", None),
        ("certificate = \"/c\"\nkey = \"/k\"\nclient_ca = \"/a\"", None),
    ] {
        let read = Config::parse(Path::new(PATH), &format!("[[listen]]\ngrpc = \"tcp:10.0.0.1:1\"\n{keys}"));
        let expected = problem.map(|problem| format!("/c.toml: listen.KEY: tcp:10.0.0.1:1: {problem}"));
        let error = read.err().map(|error| error.to_string());
        let names = ["api_key_file", "certificate", "client_ca", "key"].map(|name| format!("listen.{name}: tcp"));
        let anonymous = error.map(|error| names.iter().fold(error, |text, name| text.replace(name, "listen.KEY: tcp")));
        assert_eq!(anonymous, expected, "{keys}");
    }
    let local = "[[listen]]\ngrpc = \"tcp:127.0.0.1:1\"\napi_key_file = \"/f\"";
    assert!(Config::parse(Path::new(PATH), local).is_ok(), "a key on the loopback interface needs no TLS");
    assert!(refused("[[listen]]\ngrpc = \"unix:/x\"\napi_key_file = \"/f\"").contains("takes no keys"));
}

#[test]
fn a_given_file_must_exist_and_the_default_one_need_not() {
    let error = Config::load(Some(Path::new("/nowhere/config.toml"))).unwrap_err();
    assert_eq!(error.to_string(), "/nowhere/config.toml: No such file or directory (os error 2)");
    let default_at = |config: Option<&str>, home: Option<&str>| {
        default_path(|key| if key == "HOME" { home } else { config }.map(OsString::from))
    };
    assert_eq!(default_at(Some("/x"), Some("/h")), Some("/x/carrel/config.toml".into()));
    assert_eq!(default_at(None, Some("/h")), Some("/h/.config/carrel/config.toml".into()));
    assert_eq!(default_at(Some("relative"), Some("/h")), Some("/h/.config/carrel/config.toml".into()));
    assert_eq!(default_at(None, None), None);
}

#[test]
fn the_path_of_the_file_is_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.toml");
    std::fs::write(&path, "").unwrap();
    let config = Config::load(Some(&path)).unwrap();
    assert_eq!(config.file_description(), path.to_str().unwrap());
    assert_eq!(Config::default().file_description(), "none");
}
