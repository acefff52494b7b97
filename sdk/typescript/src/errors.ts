// What can go wrong: the server refuses, or it cannot be reached.

/** The body of a refusal, as RFC 9457 has it. */
export interface Problem {
  type: string;
  title: string;
  status: number;
  detail?: string;
  instance?: string;
  [extension: string]: unknown;
}

const URN = "urn:sandbox-agent:error:";

/** The server answered, and the answer is no. */
export class SandboxAgentError extends Error {
  override readonly name = "SandboxAgentError";
  readonly status: number;
  /** Absent when the answer came from something that does not speak of problems, such as a proxy. */
  readonly problem: Problem | undefined;
  readonly response: Response;

  constructor(response: Response, problem: Problem | undefined) {
    super(problem?.detail ?? problem?.title ?? `the server answered ${response.status} ${response.statusText}`.trim());
    this.status = response.status;
    this.problem = problem;
    this.response = response;
  }

  /** The last word of the problem's type, such as `session_not_found`. */
  get code(): string | undefined {
    const type = this.problem?.type;
    return type?.startsWith(URN) ? type.slice(URN.length) : undefined;
  }

  /** Reads the refusal's body. A body that cannot be read does not hide the refusal. */
  static async from(response: Response): Promise<SandboxAgentError> {
    let body: unknown;
    try {
      body = JSON.parse(await response.text());
    } catch {
      body = undefined;
    }
    return new SandboxAgentError(response, isProblem(body) ? body : undefined);
  }
}

/** There was no answer, or it was cut off. */
export class ConnectionError extends Error {
  override readonly name = "ConnectionError";
}

function isProblem(body: unknown): body is Problem {
  return typeof body === "object" && body !== null && "type" in body && typeof body.type === "string";
}
