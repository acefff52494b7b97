// Errors: the server rejects a request, or it is unreachable.

/** The body of an error response (RFC 9457). */
export interface Problem {
  type: string;
  title: string;
  status: number;
  detail?: string;
  instance?: string;
  [extension: string]: unknown;
}

const URN = "urn:sandbox-agent:error:";

/** The server responded with an error. */
export class SandboxAgentError extends Error {
  override readonly name = "SandboxAgentError";
  readonly status: number;
  /** Absent if the response has no problem details, such as that of a proxy. */
  readonly problem: Problem | undefined;
  readonly response: Response;

  constructor(response: Response, problem: Problem | undefined) {
    super(problem?.detail ?? problem?.title ?? `the server responded with ${response.status} ${response.statusText}`.trim());
    this.status = response.status;
    this.problem = problem;
    this.response = response;
  }

  /** The last segment of the problem's type, such as `session_not_found`. */
  get code(): string | undefined {
    const type = this.problem?.type;
    return type?.startsWith(URN) ? type.slice(URN.length) : undefined;
  }

  /** Reads the error's body. An unreadable body does not hide the error. */
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

/** There was no response, or it was interrupted. */
export class ConnectionError extends Error {
  override readonly name = "ConnectionError";
}

function isProblem(body: unknown): body is Problem {
  return typeof body === "object" && body !== null && "type" in body && typeof body.type === "string";
}
