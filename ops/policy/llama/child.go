package llama

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
)

// childName is the child's os.Args[0]: how MaybeChild knows it, and what ps shows.
const childName = "nextstate-llama"

// MaybeChild turns this process into the engine when Start executed it, and does not return then. main and every TestMain of a package that
// starts engines call it first.
func MaybeChild() {
	if len(os.Args) != 2 || os.Args[0] != childName {
		return
	}
	fmt.Fprintln(os.Stderr, failedMark+runChild(os.Args[1]).Error())
	os.Exit(1)
}

// failedMark precedes what the parent shows of a child that could not start.
const failedMark = "start: "

// runChild works until the process ends, or returns why it cannot. It reads commands from standard input and writes reports to file 3. Standard output and error are the log: native code writes there.
func runChild(arg string) error {
	var cfg Config
	if err := json.Unmarshal([]byte(arg), &cfg); err != nil {
		return fmt.Errorf("the child's argument: %w", err)
	}
	runtime.LockOSThread() // llama.cpp is called from one thread
	n, err := openNative(&cfg)
	if err != nil {
		return err
	}
	s := newScheduler(&cfg, n, newFrameWriter(os.NewFile(3, "reports")))
	go listen(s.commands) // ends with the process
	return s.run()
}

// listen passes the commands on. The end of the pipe, by Close or because the parent died, ends the process at once, native code or not.
func listen(commands chan<- command) {
	from := newFrameReader(os.Stdin)
	for {
		var c command
		if err := from.read(&c); err != nil {
			os.Exit(0)
		}
		commands <- c
	}
}
