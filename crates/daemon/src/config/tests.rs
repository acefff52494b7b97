//! What an operator can say, and what is said about what they cannot.

use super::*;

const PATH: &str = "/c.toml";

fn parsed(text: &str) -> Config {
    Config::parse(Path::new(PATH), text).unwrap()
}

fn refused(text: &str) -> String {
    Config::parse(Path::new(PATH), text).unwrap_err().to_string()
}

const EVERYTHING: &str = r#"[runtime]
idle_ttl = "1h30m"
cleanup_ttl = "0"
log_level = "debug"
grace = "500ms"

[artifacts]
exec_output_root = "/var/log/\"carrel\""
exec_output_template = "runs/{sandbox_id}/{exec_id}"

[limits]
sandboxes = 100
memory = 17179869184
sandbox_memory = 536870912
pids = 512
host_free = 0
host_free_inodes = 5000
sandbox_disk = 1073741824
sandbox_inodes = 0

[host]
allow = ["/srv/data", "/opt"]

[registries."docker.io"]
mirrors = ["mirror.example:5000", "http://10.0.0.2/hub"]

[registries."localhost:5000"]
insecure = true
ca = "/etc/carrel/registry.pem"

[[listen]]
grpc = "tcp:127.0.0.1:7443"
mode = "0600"
api_key_file = "/etc/carrel/key"

[[listen]]
grpc = "tcp:0.0.0.0:7443"
mode = "0600"
certificate = "/etc/carrel/c.pem"
key = "/etc/carrel/k.pem"
client_ca = "/etc/carrel/ca.pem"

[[listen]]
grpc = "unix:/run/carrel/open.sock"
mode = "0666"
"#;

const DEFAULTS: &str = r#"[runtime]
idle_ttl = "10m"
cleanup_ttl = "360h"
log_level = "info"
grace = "2s"

[artifacts]
exec_output_template = "{sandbox_id}/{exec_id}"

[limits]
pids = 1024
host_free = 1073741824
sandbox_disk = 10737418240
sandbox_inodes = 1048576

[host]
allow = []
"#;

#[test]
fn nothing_said_is_the_defaults() {
    assert_eq!(parsed(""), Config::default());
    assert_eq!(Config::default().to_string(), DEFAULTS);
}

#[test]
fn what_is_in_effect_is_shown_as_it_can_be_said() {
    assert_eq!(parsed(EVERYTHING).to_string(), EVERYTHING);
    assert_eq!(parsed(DEFAULTS), Config::default());
}

#[test]
fn the_output_of_a_sandbox_is_where_the_template_says() {
    let home = Path::new("/h");
    assert_eq!(Config::default().log_directory(home, "web1"), Path::new("/h/logs/web1"));
    let config = parsed("[artifacts]\nexec_output_root = \"/l\"\nexec_output_template = \"a/{sandbox_id}/{exec_id}\"");
    assert_eq!(config.log_directory(home, "web1"), Path::new("/l/a/web1"));
}

#[test]
fn what_the_guide_says_can_be_said() {
    let guide = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/daemon.md")).unwrap();
    let example = guide.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let config = parsed(example);
    assert_eq!((config.limits.memory, config.listen.len()), (Some(16 << 30), 2));
    let defaults = Config {
        limits: Config::default().limits,
        allow: Vec::new(),
        listen: Vec::new(),
        exec_output_root: None,
        registries: Registries::default(),
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
fn an_unknown_key_is_refused_with_its_line_and_those_there_are() {
    assert_eq!(
        refused("[runtime]\nidle_ttl = \"1m\"\nidel_ttl = \"1m\"\n"),
        "/c.toml, line 3: unknown field `idel_ttl`, expected one of `idle_ttl`, `cleanup_ttl`, `log_level`, `grace`"
    );
    assert!(refused("[runtim]\n").starts_with("/c.toml, line 1: unknown field `runtim`, expected one of"));
    assert!(refused("[[listen]]\ngrpc = \"unix:/x\"\nport = 1\n").contains("line 3: unknown field `port`"));
    assert!(refused("[[listen]]\n").contains("missing field `grpc`"));
    assert!(refused("nonsense").starts_with("/c.toml, line 1: "));
}

#[test]
fn a_value_that_is_none_is_refused_with_one_that_would_do() {
    for (text, said) in [
        (
            "[runtime]\nidle_ttl = \"-1s\"",
            "/c.toml: runtime.idle_ttl is \"-1s\", and has to be such as \"10m\", \"1h30m\" or \"0\"",
        ),
        (
            "[runtime]\nlog_level = \"loud\"",
            "/c.toml: runtime.log_level is \"loud\", and has to be one of error, warn, info, debug, trace",
        ),
        (
            "[limits]\nmemory = \"lots\"",
            "/c.toml: limits.memory is \"lots\", and has to be such as 536870912, \"512m\" or \"1.5GiB\"",
        ),
        (
            "[artifacts]\nexec_output_template = \"{exec_id}/{sandbox_id}\"",
            "/c.toml: artifacts.exec_output_template: \"{exec_id}/{sandbox_id}\" is no place for the output of execs: it has to end in \"{sandbox_id}/{exec_id}\", below the root",
        ),
        (
            "[artifacts]\nexec_output_root = \"logs\"",
            "/c.toml: artifacts.exec_output_root: \"logs\" does not start with a slash",
        ),
        (
            "[registries.\"r.example\"]\nmirrors = [\"ftp://x\"]",
            "/c.toml: registries: \"ftp://x\" is not a mirror: give it as [http://]host[:port][/path]",
        ),
        (
            "[registries.\"r.example\"]\nca = \"ca.pem\"",
            "/c.toml: registries.ca: \"ca.pem\" does not start with a slash",
        ),
        ("[host]\nallow = [\"srv\"]", "/c.toml: host.allow: \"srv\" does not start with a slash"),
        (
            "[[listen]]\ngrpc = \"7443\"",
            "/c.toml: listen.grpc: \"7443\" is no address: give unix:PATH or tcp:ADDRESS:PORT",
        ),
        (
            "[[listen]]\ngrpc = \"unix:/x\"\nmode = \"rw\"",
            "/c.toml: listen.mode is \"rw\", and has to be permissions such as \"0600\"",
        ),
    ] {
        assert_eq!(refused(text), said);
    }
}

#[test]
fn nobody_connects_to_a_port_without_a_key_or_in_the_clear() {
    for (keys, problem) in [
        ("", Some("anybody could connect: it needs `api_key_file` or `client_ca`")),
        ("certificate = \"/c\"", Some("a certificate needs its `key`")),
        ("key = \"/k\"", Some("a key needs its `certificate`")),
        ("client_ca = \"/a\"", Some("`client_ca` needs `certificate` and `key`")),
        ("certificate = \"/c\"\nkey = \"/k\"", Some("anybody could connect: it needs `api_key_file` or `client_ca`")),
        ("api_key_file = \"/f\"", Some("a key that others could read on their way needs `certificate` and `key`")),
        ("certificate = \"/c\"\nkey = \"/k\"\napi_key_file = \"/f\"", None),
        ("certificate = \"/c\"\nkey = \"/k\"\nclient_ca = \"/a\"", None),
    ] {
        let read = Config::parse(Path::new(PATH), &format!("[[listen]]\ngrpc = \"tcp:10.0.0.1:1\"\n{keys}"));
        let said = problem.map(|problem| format!("/c.toml: listen tcp:10.0.0.1:1: {problem}"));
        assert_eq!(read.err().map(|error| error.to_string()), said, "{keys}");
    }
    let local = "[[listen]]\ngrpc = \"tcp:127.0.0.1:1\"\napi_key_file = \"/f\"";
    assert!(Config::parse(Path::new(PATH), local).is_ok(), "what stays on this host nobody reads on its way");
    assert!(refused("[[listen]]\ngrpc = \"unix:/x\"\napi_key_file = \"/f\"").contains("takes no keys"));
}

#[test]
fn a_file_that_was_named_has_to_be_there_and_the_usual_one_need_not() {
    let error = Config::load(Some(Path::new("/nowhere/config.toml"))).unwrap_err();
    assert_eq!(error.to_string(), "/nowhere/config.toml: No such file or directory (os error 2)");
    let usual = |config: Option<&str>, home: Option<&str>| {
        usual_path(|key| if key == "HOME" { home } else { config }.map(OsString::from))
    };
    assert_eq!(usual(Some("/x"), Some("/h")), Some("/x/carrel/config.toml".into()));
    assert_eq!(usual(None, Some("/h")), Some("/h/.config/carrel/config.toml".into()));
    assert_eq!(usual(Some("relative"), Some("/h")), Some("/h/.config/carrel/config.toml".into()));
    assert_eq!(usual(None, None), None);
}

#[test]
fn the_file_that_was_read_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.toml");
    std::fs::write(&path, "").unwrap();
    let config = Config::load(Some(&path)).unwrap();
    assert_eq!(config.file_said(), path.to_str().unwrap());
    assert_eq!(Config::default().file_said(), "none");
}
