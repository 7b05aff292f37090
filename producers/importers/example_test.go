package importers_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/nextstate-rl/nextstate/producers/importers"
)

// A transcript is detected by its keys and becomes events in the order of its session.
func ExampleImportReader() {
	transcript := `{"messages":[{"role":"user","content":"2+2?"},{"role":"assistant","content":"5"},{"role":"user","content":"No, 4."}]}`
	var log collector
	report, err := importers.ImportReader(context.Background(), importers.Options{Tenant: "acme"}, "sums.jsonl", strings.NewReader(transcript), &log)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(report.Format, report.Sessions, report.Actions, report.NextStates)
	for _, e := range log.events {
		fmt.Println(e.Kind())
	}
	// Output:
	// openai 1 1 map[user_reply:1]
	// ActionTaken
	// NextStateObserved
	// SessionEnded
}
