//! The image configuration: the parts that are honoured.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::manifest::{MAX_CONFIG_SIZE, ManifestError, read};
use crate::platform::Platform;

/// Defaults for running an image's commands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageConfig {
    /// The platform the image was built for.
    pub platform: Option<Platform>,
    /// The creation time, as the image states it.
    pub created: Option<String>,
    /// Environment variables, `NAME=VALUE`.
    pub env: Vec<String>,
    /// `USER[:GROUP]`, by name or ID.
    pub user: Option<String>,
    /// The working directory.
    pub workdir: Option<String>,
    /// The prefix of every command.
    pub entrypoint: Vec<String>,
    /// The default command.
    pub cmd: Vec<String>,
    /// Exposed ports, `80/tcp`.
    pub ports: Vec<String>,
    /// Free-form metadata.
    pub labels: BTreeMap<String, String>,
    /// The signal that asks the main process to exit.
    pub stop_signal: Option<String>,
}

/// A parsed configuration file.
#[derive(Clone, Debug)]
pub(crate) struct ParsedConfig {
    pub(crate) config: ImageConfig,
    /// The diff IDs, the lowest layer first.
    pub(crate) layers: Vec<Digest>,
}

#[derive(Deserialize)]
struct ImageConfigFile {
    #[serde(default)]
    created: Option<String>,
    #[serde(default)]
    os: Option<String>,
    #[serde(default)]
    architecture: Option<String>,
    #[serde(default)]
    variant: Option<String>,
    #[serde(default)]
    config: Option<ConfigSection>,
    rootfs: ConfigRootFs,
}

#[derive(Deserialize)]
struct ConfigRootFs {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    diff_ids: Option<Vec<Digest>>,
}

/// The `config` section of the OCI format.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct ConfigSection {
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

// === impl ParsedConfig ===

impl ParsedConfig {
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, ManifestError> {
        let file: ImageConfigFile = read("configuration", bytes, MAX_CONFIG_SIZE)?;
        if file.rootfs.kind != "layers" {
            return Err(ManifestError::MediaType { what: "root file system", found: file.rootfs.kind });
        }
        let section = file.config.unwrap_or_default();
        let text = |text: Option<String>| text.filter(|text| !text.is_empty());
        let platform = match (text(file.os), text(file.architecture)) {
            (Some(os), Some(architecture)) => Some(Platform { os, architecture, variant: text(file.variant) }),
            _ => None,
        };
        let config = ImageConfig {
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

/// A configuration for an image without one: it has only the layers, so that its digest is reproducible.
pub(crate) fn generated(layers: &[Digest]) -> std::io::Result<Vec<u8>> {
    let Platform { os, architecture, .. } = Platform::host();
    let rootfs = serde_json::json!({ "type": "layers", "diff_ids": layers });
    let file = serde_json::json!({ "architecture": architecture, "os": os, "config": {}, "rootfs": rootfs });
    Ok(serde_json::to_vec(&file)?)
}

/// The configuration of an image with one more layer, or with one. Unknown keys of the original are kept.
pub(crate) fn changed(original: Option<&[u8]>, config: &ImageConfig, layers: &[Digest]) -> std::io::Result<Vec<u8>> {
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
    let ours = ConfigSection {
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
    // Remove keys that are no longer set.
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
        // A partial history would be wrong: append only to an existing one.
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
    fn known_keys_are_read_and_unknown_ones_are_ignored() {
        let described = ParsedConfig::read(FILE.as_bytes()).unwrap();
        assert_eq!(described.layers, [Digest::of(b"abc")]);
        let config = described.config;
        assert_eq!(config.platform.unwrap().to_string(), "linux/arm64/v8");
        assert_eq!((config.user.as_deref(), config.workdir.as_deref()), (Some("app"), Some("/srv")));
        assert_eq!((&config.env[..], &config.cmd[..]), (&["A=1".to_owned()][..], &["sh".to_owned()][..]));
        assert_eq!(config.ports, ["80/tcp"]);
        assert_eq!((config.stop_signal.as_deref(), config.entrypoint.len()), (Some("SIGINT"), 0));
    }

    #[test]
    fn a_configuration_without_layers_of_a_known_type_is_rejected() {
        for bad in [
            "{}",
            "[]",
            r#"{"rootfs":{"type":"windows","diff_ids":[]}}"#,
            r#"{"rootfs":{"type":"layers","diff_ids":["sha512:00"]}}"#,
        ] {
            assert!(ParsedConfig::read(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(ParsedConfig::read(br#"{"rootfs":{"type":"layers"}}"#).is_ok());
    }

    #[test]
    fn a_saved_configuration_has_the_new_values_and_keeps_unknown_keys() {
        let mut config = ParsedConfig::read(FILE.as_bytes()).unwrap().config;
        config.cmd = vec!["bash".into()];
        config.user = None;
        let layers = [Digest::of(b"abc"), Digest::of(b"new")];
        let bytes = changed(Some(FILE.as_bytes()), &config, &layers).unwrap();
        let described = ParsedConfig::read(&bytes).unwrap();
        assert_eq!((described.config, described.layers), (config, layers.to_vec()));
        let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!((&value["author"], &value["config"]["OnBuild"][0]), (&"someone".into(), &"x".into()));
        assert_eq!(value["history"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn the_same_layers_have_the_same_configuration() {
        let layers = [Digest::of(b"abc")];
        assert_eq!(generated(&layers).unwrap(), generated(&layers).unwrap());
        assert_eq!(ParsedConfig::read(&generated(&layers).unwrap()).unwrap().layers, layers);
    }
}
