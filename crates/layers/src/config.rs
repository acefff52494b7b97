//! The configuration of an image: what of it is honoured.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::manifest::{LARGEST_CONFIG, ManifestError, read};
use crate::platform::Platform;

/// What an image says about how it is to be run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// What it was built for.
    pub platform: Option<Platform>,
    /// When it was made, as it says.
    pub created: Option<String>,
    /// Variables, `NAME=VALUE`.
    pub env: Vec<String>,
    /// Who a command runs as: a name or a number, and a group after a colon.
    pub user: Option<String>,
    /// Where a command begins.
    pub workdir: Option<String>,
    /// What every command begins with.
    pub entrypoint: Vec<String>,
    /// What runs if nothing is asked for.
    pub cmd: Vec<String>,
    /// Ports that it listens on, `80/tcp`.
    pub ports: Vec<String>,
    /// What is said about it.
    pub labels: BTreeMap<String, String>,
    /// The signal that asks it to end.
    pub stop_signal: Option<String>,
}

/// A configuration, read.
#[derive(Clone, Debug)]
pub(crate) struct Described {
    pub(crate) config: Config,
    /// What its layers unpack from, the lowest first.
    pub(crate) layers: Vec<Digest>,
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    created: Option<String>,
    #[serde(default)]
    os: Option<String>,
    #[serde(default)]
    architecture: Option<String>,
    #[serde(default)]
    variant: Option<String>,
    #[serde(default)]
    config: Option<Section>,
    rootfs: Layers,
}

#[derive(Deserialize)]
struct Layers {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    diff_ids: Option<Vec<Digest>>,
}

/// How a command is run, in the words of the format.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Section {
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exposed_ports: Option<BTreeMap<String, serde_json::Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    env: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entrypoint: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cmd: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    working_dir: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_signal: Option<String>,
}

// === impl Described ===

impl Described {
    /// Reads a configuration.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, ManifestError> {
        let file: File = read("configuration", bytes, LARGEST_CONFIG)?;
        if file.rootfs.kind != "layers" {
            return Err(ManifestError::MediaType { what: "root file system", found: file.rootfs.kind });
        }
        let section = file.config.unwrap_or_default();
        let text = |text: Option<String>| text.filter(|text| !text.is_empty());
        let platform = match (text(file.os), text(file.architecture)) {
            (Some(os), Some(architecture)) => Some(Platform { os, architecture, variant: text(file.variant) }),
            _ => None,
        };
        let config = Config {
            platform,
            created: text(file.created),
            env: section.env.unwrap_or_default(),
            user: text(section.user),
            workdir: text(section.working_dir),
            entrypoint: section.entrypoint.unwrap_or_default(),
            cmd: section.cmd.unwrap_or_default(),
            ports: section.exposed_ports.unwrap_or_default().into_keys().collect(),
            labels: section.labels.unwrap_or_default(),
            stop_signal: text(section.stop_signal),
        };
        Ok(Self { config, layers: file.rootfs.diff_ids.unwrap_or_default() })
    }
}

/// The configuration of an image that has none: it says what its layers are, and nothing that differs from one time to
/// the next.
pub(crate) fn generated(layers: &[Digest]) -> std::io::Result<Vec<u8>> {
    let Platform { os, architecture, .. } = Platform::host();
    let rootfs = serde_json::json!({ "type": "layers", "diff_ids": layers });
    let file = serde_json::json!({ "architecture": architecture, "os": os, "config": {}, "rootfs": rootfs });
    Ok(serde_json::to_vec(&file)?)
}

/// The configuration of an image that has one layer more than another, or is the first: what else the other says stays.
pub(crate) fn changed(original: Option<&[u8]>, config: &Config, layers: &[Digest]) -> std::io::Result<Vec<u8>> {
    use serde_json::{Map, Value};
    let mut file: Map<String, Value> = match original {
        Some(original) => serde_json::from_slice(original)?,
        None => Map::new(),
    };
    let platform = config.platform.clone().unwrap_or_else(Platform::host);
    file.insert("architecture".into(), platform.architecture.into());
    file.insert("os".into(), platform.os.into());
    if let Some(variant) = platform.variant.filter(|_| original.is_none() || file.contains_key("variant")) {
        file.insert("variant".into(), variant.into());
    }
    match &config.created {
        Some(created) => file.insert("created".into(), created.clone().into()),
        None => file.remove("created"),
    };
    let mut section = match file.remove("config") {
        Some(Value::Object(section)) => section,
        _ => Map::new(),
    };
    let some = |list: &[String]| (!list.is_empty()).then(|| list.to_vec());
    let ours = Section {
        user: config.user.clone(),
        exposed_ports: (!config.ports.is_empty())
            .then(|| config.ports.iter().map(|port| (port.clone(), Value::Object(Map::new()))).collect()),
        env: some(&config.env),
        entrypoint: some(&config.entrypoint),
        cmd: some(&config.cmd),
        working_dir: config.workdir.clone(),
        labels: (!config.labels.is_empty()).then(|| config.labels.clone()),
        stop_signal: config.stop_signal.clone(),
    };
    // What is not said any more goes.
    for key in ["User", "ExposedPorts", "Env", "Entrypoint", "Cmd", "WorkingDir", "Labels", "StopSignal"] {
        section.remove(key);
    }
    if let Value::Object(ours) = serde_json::to_value(ours)? {
        section.extend(ours);
    }
    file.insert("config".into(), section.into());
    file.insert("rootfs".into(), serde_json::json!({ "type": "layers", "diff_ids": layers }));
    let mut step = Map::new();
    step.extend(config.created.clone().map(|created| ("created".to_owned(), Value::from(created))));
    step.insert("created_by".into(), "carrel image save".into());
    match file.get_mut("history") {
        Some(Value::Array(history)) => history.push(step.into()),
        // Steps that are not known cannot be told: where there are none, this one alone would be wrong.
        _ if layers.len() > 1 => {}
        _ => {
            file.insert("history".into(), Value::Array(vec![step.into()]));
        }
    }
    Ok(serde_json::to_vec(&file)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"{"architecture":"arm64","os":"linux","variant":"v8","author":"someone","config":{"User":"app",
        "Env":["A=1"],"Cmd":["sh"],"Entrypoint":null,"WorkingDir":"/srv","ExposedPorts":{"80/tcp":{}},"OnBuild":["x"],
        "Labels":{"a":"b"},"StopSignal":"SIGINT","Unknown":{}},"history":[{"created_by":"x"}],
        "rootfs":{"type":"layers","diff_ids":["sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"]}}"#;

    #[test]
    fn what_is_honoured_is_read_and_the_rest_is_passed_over() {
        let described = Described::read(FILE.as_bytes()).unwrap();
        assert_eq!(described.layers, [Digest::of(b"abc")]);
        let config = described.config;
        assert_eq!(config.platform.unwrap().to_string(), "linux/arm64/v8");
        assert_eq!((config.user.as_deref(), config.workdir.as_deref()), (Some("app"), Some("/srv")));
        assert_eq!((&config.env[..], &config.cmd[..]), (&["A=1".to_owned()][..], &["sh".to_owned()][..]));
        assert_eq!(config.ports, ["80/tcp"]);
        assert_eq!((config.stop_signal.as_deref(), config.entrypoint.len()), (Some("SIGINT"), 0));
    }

    #[test]
    fn a_configuration_without_layers_of_a_known_kind_is_refused() {
        for bad in [
            "{}",
            "[]",
            r#"{"rootfs":{"type":"windows","diff_ids":[]}}"#,
            r#"{"rootfs":{"type":"layers","diff_ids":["sha512:00"]}}"#,
        ] {
            assert!(Described::read(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(Described::read(br#"{"rootfs":{"type":"layers"}}"#).is_ok());
    }

    #[test]
    fn what_is_saved_says_what_it_is_told_and_keeps_what_it_does_not_know() {
        let mut config = Described::read(FILE.as_bytes()).unwrap().config;
        config.cmd = vec!["bash".into()];
        config.user = None;
        let layers = [Digest::of(b"abc"), Digest::of(b"new")];
        let bytes = changed(Some(FILE.as_bytes()), &config, &layers).unwrap();
        let described = Described::read(&bytes).unwrap();
        assert_eq!((described.config, described.layers), (config, layers.to_vec()));
        let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!((&value["author"], &value["config"]["OnBuild"][0]), (&"someone".into(), &"x".into()));
        assert_eq!(value["history"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn the_same_layers_have_the_same_configuration() {
        let layers = [Digest::of(b"abc")];
        assert_eq!(generated(&layers).unwrap(), generated(&layers).unwrap());
        assert_eq!(Described::read(&generated(&layers).unwrap()).unwrap().layers, layers);
    }
}
