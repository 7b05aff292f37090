// Package trainer is the update loop: it consumes `samples` and publishes policy versions on `policies`.
//
// In: SampleAssembled from `samples`; PolicyRolledBack from `policies`. Out: UpdateStarted, and PolicyPublished or UpdateSkipped; the weights of a version in the blob store,
// as PEFT safetensors, GGUF and checkpoint; what cannot be trained in `deadletters`.
//
// Invariants:
//   - Each sample counts in exactly one update. The ledger takes an update, its samples and its event in one transaction, before anything is computed; the
//     events go to the log from its outbox, after the commit, and again after a crash, as the same records.
//   - An update is a function of its recipe, seed, parent and samples. A trainer that was killed computes it again, to the same bytes.
//   - The weights are durable before their version is heard of. What is not finite, or has no gradient, is never published: the update is skipped, with the reason.
//   - One trainer of a tenant works at a time; one that lost the ledger without knowing is fenced by the ledger's epoch.
//   - Samples wait in order of arrival, in bounded number; no sample of the tenant's policy is dropped without a dead letter. Those of other tenants, and turns that no
//     policy answered, are left alone.
//
// Read first: loop.go (Loop: claim, minibatch, begin, update, publish), then loop_intake.go (which samples), update.go (Update.Run: one update as a pure
// function; update_trust.go bounds how far it goes), objective.go (Objective.Loss, one turn), loss.go, loss_directive.go and loss_forward_kl.go. ledger.go is what
// survives; preset.go names good settings, and recipe_set.go changes single ones; publish.go stores and loads weights; engine.go is what trainer/onnx
// implements; adapter.go is the LoRA. standardise.go (step rewards of a group) and loss_engine.go (what external engines compute) stand apart.
package trainer
