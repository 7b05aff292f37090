// Package keys keeps tenants and their API keys in Postgres.
//
// In: the secret of a request (the gateway asks, through gateway.Keys), and what an operator orders: create, list, revoke. Out: the tenant
// that a key opens.
//
// Invariants:
//   - A secret is shown once, when it is made; only its SHA-256 is stored. A key is 256 random bits, so a plain hash cannot be guessed from.
//   - A revoked key opens nothing: at once in the process that revoked it, in others after Config.CacheFor.
//   - The cache is bounded and holds hashes, no secrets; an unknown key is never cached, so that guessing cannot fill it.
//
// Read store.go. The tables are in ops/migrations/postgres.
package keys
