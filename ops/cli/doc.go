// Package cli holds the commands: one file each, a struct with kong tags whose Run does the work. main.go lists them in a tree.
//
// In: flags, environment and configuration file, in that order of precedence (globals.go, configfile.go). Out: calls into ops, and text for
// people, or JSON with --json, on standard output; progress and logs on standard error. Exit status: 0 done, 1 failed, 2 usage, 3 done but
// some records were bad, 130 interrupted.
//
// Read globals.go first.
package cli
