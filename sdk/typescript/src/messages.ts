// Messages and their parts. Fields of a part are in snake_case, as on the wire.

export type AttachmentSource =
  | { type: "path"; path: string }
  | { type: "url"; url: string }
  | { type: "data"; data: string; encoding?: string };

export interface TextPart {
  type: "text";
  text: string;
}

export interface ToolCallPart {
  type: "tool_call";
  id?: string;
  name: string;
  input: unknown;
}

export interface ToolResultPart {
  type: "tool_result";
  id?: string;
  name?: string;
  output: unknown;
  is_error?: boolean;
}

export interface FunctionCallPart {
  type: "function_call";
  id?: string;
  name?: string;
  arguments: unknown;
  raw?: unknown;
}

export interface FunctionResultPart {
  type: "function_result";
  id?: string;
  name?: string;
  result: unknown;
  is_error?: boolean;
  raw?: unknown;
}

export interface FilePart {
  type: "file";
  source: AttachmentSource;
  mime_type?: string;
  filename?: string;
  raw?: unknown;
}

export interface ImagePart {
  type: "image";
  source: AttachmentSource;
  mime_type?: string;
  alt?: string;
  raw?: unknown;
}

export interface ErrorPart {
  type: "error";
  message: string;
}

export interface UnknownPart {
  type: "unknown";
  raw: unknown;
}

export type MessagePart =
  | TextPart
  | ToolCallPart
  | ToolResultPart
  | FunctionCallPart
  | FunctionResultPart
  | FilePart
  | ImagePart
  | ErrorPart
  | UnknownPart;

export interface ParsedMessage {
  role: string;
  id?: string;
  metadata?: Record<string, unknown>;
  parts: MessagePart[];
}

/** Output of the agent that could not be parsed. */
export interface UnparsedMessage {
  raw: unknown;
  error?: string;
}

export type Message = ParsedMessage | UnparsedMessage;

export function isParsed(message: Message): message is ParsedMessage {
  return "parts" in message;
}

/** The text parts of a message, joined; empty if it has none. */
export function textOf(message: Message): string {
  if (!isParsed(message)) return "";
  return message.parts.map((part) => (part.type === "text" ? part.text : "")).join("");
}
