//! Images and documents in the content of messages and tool results.

use serde_json::Value;

use super::native::{list, text};
use crate::schema::{AttachmentSource, MessagePart};

/// A block as a part; a block of another type is an unknown part.
pub(super) fn part(block: &Value) -> MessagePart {
    match (text(block, "type"), text(block, "text")) {
        (Some("text"), Some(words)) => Some(MessagePart::text(words)),
        _ => attachment(block),
    }
    .unwrap_or_else(|| MessagePart::Unknown { raw: block.clone() })
}

/// The images and documents of a tool result.
pub(super) fn of_result(block: &Value) -> impl Iterator<Item = MessagePart> {
    list(block, "content").iter().filter_map(attachment)
}

fn attachment(block: &Value) -> Option<MessagePart> {
    let source = block.get("source")?;
    let mime_type = text(source, "media_type").map(str::to_owned);
    let field = |key| text(source, key).map(str::to_owned);
    let source = match text(source, "type")? {
        "base64" => AttachmentSource::Data { data: field("data")?, encoding: Some("base64".to_owned()) },
        "text" => AttachmentSource::Data { data: field("data")?, encoding: None },
        "url" => AttachmentSource::Url { url: field("url")? },
        _ => return None,
    };
    match text(block, "type")? {
        "image" => Some(MessagePart::Image { source, mime_type, alt: None, raw: None }),
        "document" => {
            let filename = text(block, "title").map(str::to_owned);
            Some(MessagePart::File { source, mime_type, filename, raw: None })
        }
        _ => None,
    }
}
