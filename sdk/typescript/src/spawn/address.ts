// Where an embedded server listens, and how it is reached there.

import { createServer } from "node:net";

/** A port that is free now. Somebody may take it before the server does, which is then tried again. */
export function freePort(host: string): Promise<number> {
  return new Promise((resolve, reject) => {
    const probe = createServer();
    probe.once("error", reject);
    probe.listen(0, host, () => {
      const address = probe.address();
      probe.close((error) => {
        if (error || address === null || typeof address === "string") reject(error ?? new Error("no port is free"));
        else resolve(address.port);
      });
    });
  });
}

/** A server that listens everywhere is reached on the loopback interface. */
export function baseUrl(host: string, port: number): string {
  const reached = host === "0.0.0.0" ? "127.0.0.1" : host === "::" ? "::1" : host;
  return `http://${reached.includes(":") ? `[${reached}]` : reached}:${port}`;
}
