package clickhouse

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"

	"github.com/nextstate-rl/nextstate/ops/embedded/folder"
)

// childName is the child's os.Args[0]: how MaybeChild knows it, and what ps shows.
const childName = "nextstate-clickhouse"

// Bounds of the child.
const (
	endTimeout  = 20 * time.Second // for the engine's orderly end, after the parent has gone
	logBytesMax = 64 << 20
)

// MaybeChild turns this process into the engine when Start executed it, and does not return then. main and every TestMain of a package that
// starts servers call it first.
func MaybeChild() {
	if len(os.Args) != 2 || os.Args[0] != childName {
		return
	}
	if err := runChild(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func runChild(arg string) error {
	var spec childSpec
	if err := json.Unmarshal([]byte(arg), &spec); err != nil {
		return fmt.Errorf("the child's argument: %w", err)
	}
	life, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return fmt.Errorf("lifetime pipe: %w", err)
	}
	terminal, err := terminalStdin()
	if err != nil {
		return fmt.Errorf("terminal for the prompt: %w", err)
	}
	// Both end with the process.
	go followParent(os.NewFile(uintptr(life), "lifetime"), terminal)
	go folder.BoundLog(nil, spec.logFile(), logBytesMax) // every failed query writes a stack trace
	return local(spec)
}

// followParent types "exit" when the parent's end of the pipe is closed: by Close, or by the kernel when the parent died. The wish may come before the
// prompt is there; the terminal keeps it until then.
func followParent(life, terminal *os.File) {
	go func() { _, _ = io.Copy(io.Discard, terminal) }() // what the prompt draws; a full terminal would block the engine
	_, _ = io.Copy(io.Discard, life)                     // ends with the parent
	if _, err := terminal.WriteString("exit\n"); err != nil {
		fmt.Fprintln(os.Stderr, "end the engine:", err)
	} else {
		time.Sleep(endTimeout)
		fmt.Fprintln(os.Stderr, "the engine did not end in time")
	}
	os.Exit(3) // as safe as a power cut: what was acknowledged is in the file system
}

// local runs `clickhouse local` out of the library until its prompt ends.
func local(spec childSpec) error {
	lib, err := purego.Dlopen(spec.Lib, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return fmt.Errorf("load the library: %w", err)
	}
	var (
		handleSignals func(int32)
		run           func(argc int32, argv **byte) uintptr
		failed        func(result uintptr) string
	)
	purego.RegisterLibFunc(&handleSignals, lib, "chdb_set_signal_handlers_enabled")
	purego.RegisterLibFunc(&run, lib, "chdb_query_cmdline")
	purego.RegisterLibFunc(&failed, lib, "chdb_result_error")
	handleSignals(0) // signals are the Go runtime's
	opening := "SYSTEM START LISTEN TCP; SYSTEM START LISTEN HTTP; SELECT getServerPort('tcp_port'), getServerPort('http_port') " +
		"INTO OUTFILE '" + spec.portsFile() + "' TRUNCATE FORMAT TSV"
	args := []string{
		"clickhouse", "--config-file=" + spec.configFile(), "--path=" + DataDir(spec.Dir), "--logger.level=warning", "--log-level=warning",
		"--listen_host=127.0.0.1", "--tcp_port=" + strconv.Itoa(spec.TCPPort), "--http_port=" + strconv.Itoa(spec.HTTPPort),
		"--interactive", "--disable_suggestion", "--enable-progress-table-toggle=0", "--progress=off", "--history_file=" + spec.historyFile(),
		"--query", opening,
	}
	argv := make([]*byte, len(args)+1) // C wants a final null
	for i, a := range args {
		argv[i] = &append([]byte(a), 0)[0]
	}
	if said := failed(run(int32(len(args)), &argv[0])); said != "" {
		return errors.New(said)
	}
	return nil
}
