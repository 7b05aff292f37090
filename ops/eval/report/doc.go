// Package report writes what an evaluation has found: a page with plots, its tables in Markdown, and its figures as JSON.
//
// In: the tenants of the runs, and a ClickHouse that has their events (reply_evaluated, evaluation_started, evaluation_ended, the updates, the samples). Out:
// three files in one folder.
//
// Invariants:
//   - Every table and plot comes from one ClickHouse statement that is printed beside it and works as it stands in `nextstate sql`. What ClickHouse does not
//     compute is a pure function here: the mean over seeds, the bootstrap, and the chance that luck alone aligns.
//   - Nothing is dropped: a run that did not align counts as the cap of sessions and is called censored, an arm without an update says so, and an
//     interval that one seed cannot give is said to be missing.
//   - The same history and the same seed give the same figures, samples and intervals.
//   - The page needs no network and no script, and nothing that a policy wrote reaches it unescaped.
//
// Read report.go first, then queries.go (what is asked), gather.go (what is computed), compose.go (what is said); stats.go and chance.go are the
// statistics, html.go, markdown.go and plot.go the form.
package report
