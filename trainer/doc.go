// Package trainer is where the update loop lives: it consumes `samples` and publishes policy versions on `policies`.
//
// It holds no code yet. What it reads and writes is settled already, in schemas: SampleAssembled in; UpdateStarted, PolicyPublished
// and PolicyRolledBack out.
package trainer
