// Module loader hooks that reject what a browser does not have.

import { builtinModules } from "node:module";

type Next = (specifier: string, context: object) => Promise<{ url: string }>;

export async function resolve(specifier: string, context: object, next: Next): Promise<{ url: string }> {
  if (specifier.startsWith("node:") || builtinModules.includes(specifier)) {
    throw new Error(`a browser has no ${specifier}`);
  }
  return next(specifier, context);
}
