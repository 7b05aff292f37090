// Testsum reads `go test -json` and prints what `go test` would, then how many tests were executed as the last line.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

type event struct {
	Action, Package, Test, Output string
}

func main() {
	passed, failed, skipped := 0, 0, 0
	output := map[string][]string{} // of running tests: shown when they fail
	broken := false
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := in.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil {
				fmt.Print(line)
				continue
			}
			key := e.Package + " " + e.Test
			switch e.Action {
			case "output":
				if e.Test == "" && !strings.HasPrefix(e.Output, "PASS") {
					fmt.Print(e.Output)
				} else {
					output[key] = append(output[key], e.Output)
				}
			case "build-output":
				fmt.Print(e.Output)
			case "build-fail":
				broken = true
			case "pass":
				if e.Test != "" {
					passed++
				}
				delete(output, key)
			case "skip":
				if e.Test != "" {
					skipped++
				}
				delete(output, key)
			case "fail":
				if e.Test != "" {
					failed++
				} else {
					broken = true
				}
				for of, lines := range output {
					// A process that dies, or that the time limit ends, fails as a package: what its running tests said tells why.
					if of == key || e.Test == "" && strings.HasPrefix(of, key) {
						fmt.Print(strings.Join(lines, ""))
						delete(output, of)
					}
				}
			}
		}
		if err != nil {
			break
		}
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped)
	if failed > 0 || broken || passed == 0 {
		os.Exit(1)
	}
}
