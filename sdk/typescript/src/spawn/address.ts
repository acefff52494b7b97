// The address of an embedded server.

import { createServer } from "node:net";

/** A port that is free now. Another process may take it before the server does; then the start is retried. */
export function freePort(host: string): Promise<number> {
  return new Promise((resolve, reject) => {
    const probe = createServer();
    probe.once("error", reject);
    probe.listen(0, host, () => {
      const address = probe.address();
      probe.close((error) => {
        if (error || address === null || typeof address === "string") reject(error ?? new Error("no free port"));
        else resolve(address.port);
      });
    });
  });
}

/** A server that listens on all addresses is reached on the loopback interface. */
export function baseUrl(host: string, port: number): string {
  const reached = host === "0.0.0.0" ? "127.0.0.1" : host === "::" ? "::1" : host;
  return `http://${reached.includes(":") ? `[${reached}]` : reached}:${port}`;
}
