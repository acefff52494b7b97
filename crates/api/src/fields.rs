//! Counts the fields of a request before it is decoded.
//!
//! An empty message in a list takes two bytes in a request, and hundreds of bytes in memory.

use std::collections::HashMap;
use std::sync::LazyLock;

use prost::Message;
use prost_types::{DescriptorProto, FileDescriptorSet};

use crate::generated::DESCRIPTORS;

/// The maximum nesting depth of requests.
const MAX_DEPTH: u8 = 8;

/// The requests of all methods, by path.
static SCHEMAS: LazyLock<RequestSchemas> = LazyLock::new(|| {
    // The descriptors are generated, and were parsed when the daemon started to serve.
    RequestSchemas::new(&FileDescriptorSet::decode(DESCRIPTORS).unwrap_or_default())
});

/// The request message of a method.
#[derive(Clone, Debug)]
pub(crate) struct RequestSchema {
    /// The name of the message.
    message: String,
    /// Whether the client streams messages.
    pub(crate) streamed: bool,
}

#[derive(Debug, Default)]
struct RequestSchemas {
    methods: HashMap<String, RequestSchema>,
    /// The message-typed fields of each message, by number.
    messages: HashMap<String, HashMap<u64, String>>,
}

// === impl RequestSchema ===

impl RequestSchema {
    /// The request of a method; `None` if it is unknown.
    pub(crate) fn of(path: &str) -> Option<&'static Self> {
        SCHEMAS.methods.get(path)
    }

    /// The number of fields of a message, including those of nested messages.
    pub(crate) fn fields(&self, message: &[u8]) -> u64 {
        SCHEMAS.fields(&self.message, message, MAX_DEPTH)
    }
}

// === impl RequestSchemas ===

impl RequestSchemas {
    fn new(set: &FileDescriptorSet) -> Self {
        let mut requests = Self::default();
        for file in &set.file {
            let package = format!(".{}", file.package());
            file.message_type.iter().for_each(|message| requests.add(&package, message));
            for service in &file.service {
                for method in &service.method {
                    let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                    let (message, streamed) = (method.input_type().to_owned(), method.client_streaming());
                    requests.methods.insert(path, RequestSchema { message, streamed });
                }
            }
        }
        requests
    }

    fn add(&mut self, within: &str, message: &DescriptorProto) {
        let name = format!("{within}.{}", message.name());
        message.nested_type.iter().for_each(|nested| self.add(&name, nested));
        let fields =
            message.field.iter().filter(|field| field.r#type() == prost_types::field_descriptor_proto::Type::Message);
        let fields =
            fields.filter_map(|field| Some((u64::try_from(field.number()).ok()?, field.type_name().to_owned())));
        self.messages.insert(name, fields.collect());
    }

    /// Counts up to the first invalid byte, where decoding stops too.
    fn fields(&self, name: &str, mut message: &[u8], depth: u8) -> u64 {
        let known = self.messages.get(name).filter(|_| depth > 0);
        let mut count = 0;
        while let Some((number, value, rest)) = field(message) {
            count += 1;
            if let Some(inner) = known.and_then(|known| known.get(&number)) {
                count += self.fields(inner, value, depth - 1);
            }
            message = rest;
        }
        count
    }
}

/// The number of the first field, its value if it is length-delimited, and the rest.
fn field(message: &[u8]) -> Option<(u64, &[u8], &[u8])> {
    let (tag, rest) = varint(message)?;
    let (value, rest): (&[u8], _) = match tag & 7 {
        0 => (&[], varint(rest)?.1),
        1 => (&[], rest.get(8..)?),
        2 => {
            let (length, rest) = varint(rest)?;
            rest.split_at_checked(usize::try_from(length).ok()?)?
        }
        5 => (&[], rest.get(4..)?),
        // No message contains groups.
        _ => return None,
    };
    Some((tag >> 3, value, rest))
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let length = bytes.iter().take(10).position(|byte| byte & 0x80 == 0)? + 1;
    let (number, rest) = bytes.split_at_checked(length)?;
    let value = number.iter().rev().fold(0_u64, |value, byte| value << 7 | u64::from(byte & 0x7f));
    Some((value, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agbox::v1::{CompanionContainerSpec, CreateExecRequest, CreateSandboxRequest, CreateSpec};
    use crate::carrel;

    fn fields(path: &str, message: &impl Message) -> u64 {
        RequestSchema::of(path).unwrap().fields(&message.encode_to_vec())
    }

    #[test]
    fn fields_of_nested_messages_are_counted() {
        let companion_containers = vec![CompanionContainerSpec::default(); 1000];
        let spec = CreateSpec { companion_containers, ..Default::default() };
        let request = CreateSandboxRequest { create_spec: Some(spec), ..Default::default() };
        // The spec itself, and each of its services.
        assert_eq!(fields("/agbox.v1.SandboxService/CreateSandbox", &request), 1 + 1000);
        let own = carrel::v1::CreateSandboxRequest { request: Some(request), ..Default::default() };
        assert_eq!(fields("/carrel.v1.Sandboxes/CreateSandbox", &own), 1 + 1 + 1000);
        let command = vec!["x".repeat(100); 10];
        // An entry, its key and its value.
        let env_overrides = [("name".to_owned(), "x".repeat(100))].into();
        let request = CreateExecRequest { command, env_overrides, ..Default::default() };
        assert_eq!(fields("/agbox.v1.SandboxService/CreateExec", &request), 10 + 3);
    }

    #[test]
    fn only_client_streaming_methods_are_streamed() {
        let mut streamed: Vec<_> =
            SCHEMAS.methods.iter().filter(|(_, kind)| kind.streamed).map(|(path, _)| path).collect();
        streamed.sort();
        assert_eq!(streamed, ["/carrel.v1.Sandboxes/AttachExec", "/carrel.v1.Sandboxes/WriteFile"]);
        assert!(RequestSchema::of("/agbox.v1.SandboxService/Unknown").is_none());
    }

    #[test]
    fn invalid_bytes_are_not_counted() {
        let kind = RequestSchema::of("/agbox.v1.SandboxService/CreateSandbox").unwrap();
        for garbage in [&[0xff; 32][..], &[0x0a, 0xff, 0xff, 0xff, 0x0f], &[0x0a, 5, 1], &[0x09, 1], &[0x0b]] {
            assert_eq!(kind.fields(garbage), 0, "{garbage:?}");
        }
    }
}
