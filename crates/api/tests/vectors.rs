//! Checks the test vectors of the published API against our types and our descriptors.

#![allow(clippy::unwrap_used, reason = "a test fails where it panics")]

use carrel_api::DESCRIPTORS;
use carrel_api::agbox::v1;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage};
use serde_json::Value;

/// A message from another implementation.
struct Vector {
    name: String,
    json: Value,
    bytes: Vec<u8>,
}

fn vectors() -> Vec<Vector> {
    let file: Value = serde_json::from_str(include_str!("data/control-api.json")).unwrap();
    let vectors = file["vectors"].as_array().unwrap();
    vectors.iter().map(Vector::read).collect()
}

impl Vector {
    fn read(value: &Value) -> Self {
        let hex = value["hex"].as_str().unwrap();
        let pairs = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap());
        let name = value["message"].as_str().unwrap().strip_prefix("agbox.v1.").unwrap().to_owned();
        Self { name, json: value["json"].clone(), bytes: pairs.collect() }
    }

    /// Uses the names of the specification: the first implementation has another one for the details of a service
    /// event.
    fn by_our_names(self) -> Self {
        let name = self.name.replace("CompanionContainerEventDetails", "ServiceEventDetails");
        let mut json = self.json;
        if name == "SandboxEvent" {
            let fields = json.as_object_mut().unwrap();
            if let Some(details) = fields.shift_remove("companion_container") {
                fields.insert("service".to_owned(), details);
            }
        }
        Self { name, json, ..self }
    }
}

macro_rules! again {
    ($name:expr, $bytes:expr, $($message:ident)*) => {
        match $name {
            $(stringify!($message) => v1::$message::decode($bytes).unwrap().encode_to_vec(),)*
            name => panic!("there is no message {name}"),
        }
    };
}

/// Decodes and encodes with our types.
fn again(name: &str, bytes: &[u8]) -> Vec<u8> {
    again!(name, bytes,
        PingRequest PingResponse MountSpec CopySpec PortMapping HealthcheckConfig CompanionContainerSpec CreateSpec
        SandboxHandle SandboxPhaseDetails ExecEventDetails ServiceEventDetails SandboxEvent ExecStatus
        CreateSandboxRequest CreateSandboxResponse GetSandboxRequest GetSandboxResponse ListSandboxesRequest
        ListSandboxesResponse ResumeSandboxRequest StopSandboxRequest DeleteSandboxRequest DeleteSandboxesRequest
        DeleteSandboxesResponse AcceptedResponse SubscribeSandboxEventsRequest CreateExecRequest CreateExecResponse
        CancelExecRequest GetExecRequest GetExecResponse ListActiveExecsRequest ListActiveExecsResponse)
}

fn descriptors() -> DescriptorPool {
    DescriptorPool::decode(DESCRIPTORS).unwrap()
}

//= control.versions.agbox-v1-baseline-numbers
//= promises.control-plane.messages-agbox-v1
#[test]
fn every_vector_decodes_and_encodes_to_the_same_bytes() {
    let vectors = vectors();
    assert_eq!(vectors.len(), 36);
    for vector in vectors.into_iter().map(Vector::by_our_names) {
        assert_eq!(again(&vector.name, &vector.bytes), vector.bytes, "{}", vector.name);
    }
}

//= control.events.envelope-id-sequence-sandbox
//= control.events.third-kind-named-service
//= promises.control-plane.messages-agbox-v1
#[test]
fn every_vector_matches_its_json() {
    let pool = descriptors();
    for vector in vectors().into_iter().map(Vector::by_our_names) {
        let descriptor = pool.get_message_by_name(&format!("agbox.v1.{}", vector.name)).unwrap();
        let read = DynamicMessage::deserialize(descriptor, &vector.json).unwrap();
        assert_eq!(read.encode_to_vec(), vector.bytes, "{}", vector.name);
    }
}

//= control.versions.agbox-v1-baseline-numbers
#[test]
fn every_message_and_method_has_a_vector() {
    let pool = descriptors();
    let names: Vec<_> = vectors().into_iter().map(|vector| vector.by_our_names().name).collect();
    let file = pool.get_file_by_name("service.proto").unwrap();
    for message in file.messages() {
        assert!(names.iter().any(|name| name == message.name()), "{} has no vector", message.name());
    }
    let service = pool.get_service_by_name("agbox.v1.SandboxService").unwrap();
    let streams: Vec<_> = service.methods().filter(|method| method.is_server_streaming()).collect();
    assert_eq!((service.methods().len(), streams.len(), streams[0].name()), (13, 1, "SubscribeSandboxEvents"));
    assert!(!service.methods().any(|method| method.is_client_streaming()));
}

#[test]
fn maps_are_encoded_deterministically() {
    let labels = |keys: &[&str]| keys.iter().map(|key| ((*key).to_owned(), "x".to_owned())).collect();
    let one = v1::ListSandboxesRequest { label_selector: labels(&["a", "b", "c"]), ..Default::default() };
    let other = v1::ListSandboxesRequest { label_selector: labels(&["c", "b", "a"]), ..Default::default() };
    assert_eq!(one.encode_to_vec(), other.encode_to_vec());
}
