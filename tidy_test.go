package main_test

import (
	"bufio"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/nextstate-rl/nextstate"

// imports is the architecture: what each part of the house may import of the others. Stages meet on topics, never in imports.
var imports = []struct {
	part string   // a folder and everything below it; the longest match counts
	may  []string // parts of ours that its packages may import (besides their own part)
}{
	{"schemas", nil},
	{"producers", []string{"schemas"}},
	{"processors", []string{"schemas"}},
	{"sinks", []string{"schemas"}},
	{"trainer", []string{"schemas"}},
	{"ops", []string{"schemas", "producers", "processors", "sinks", "trainer"}},
	{".", []string{"ops"}}, // main.go
}

// refused package names say nothing about what is inside.
var refused = []string{"util", "utils", "common", "shared", "helpers", "helper", "core", "types", "misc", "base", "lib"}

// getenv is allowed where the command line is read, in what serves tests, and in main; everything else gets its configuration handed in.
var getenv = []string{"ops/cli", "ops/assets", "ops/bench/benchtest", "ops/embedded/apache", "schemas/goldentest", "."}

// TestTidy keeps the house in order. Method: parse every Go file that is not generated, and hold it against the tables above.
func TestTidy(t *testing.T) {
	fset := token.NewFileSet()
	documented, packages := map[string]bool{}, map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != "." && (strings.HasPrefix(name, ".") || name == "testdata" || path == filepath.Join("ops", "tools")) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, ".pb.go") {
			return nil
		}
		file, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(path))
		packages[dir] = true
		if file.Doc != nil && !strings.HasSuffix(name, "_test.go") {
			documented[dir] = true
		}
		checkFile(t, path, dir, file)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for dir := range packages {
		if !documented[dir] && dir != "." {
			t.Errorf("%s: no package comment; say in doc.go what comes in, what goes out, and which file to read first", dir)
		}
	}
	if len(packages) < 10 {
		t.Fatalf("only %d packages were found: the walk is broken", len(packages))
	}
}

func checkFile(t *testing.T, path, dir string, file *ast.File) {
	t.Helper()
	test := strings.HasSuffix(path, "_test.go")
	if slices.Contains(refused, strings.TrimSuffix(file.Name.Name, "_test")) {
		t.Errorf("%s: package %s: the name says nothing; name it after what it does", path, file.Name.Name)
	}
	if n := countLines(t, path); n > 600 {
		t.Errorf("%s: %d lines; split it by what it does (about 500 at most)", path, n)
	}
	for _, spec := range file.Imports {
		imported, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module+"/")
		if ours && !test && !mayImport(dir, imported) {
			t.Errorf("%s imports %s: not in the table of allowed imports", path, imported)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.FuncDecl:
			if x.Name.Name == "init" && x.Recv == nil {
				t.Errorf("%s: init(): register in an explicit table instead", path)
			}
		case *ast.SelectorExpr:
			id, ok := x.X.(*ast.Ident)
			if !ok {
				return true
			}
			call := id.Name + "." + x.Sel.Name
			switch {
			case dir == "processors" && !test && strings.HasPrefix(call, "rand."):
				t.Errorf("%s: %s: derivation uses no randomness", path, call)
			case !test && (call == "os.Getenv" || call == "os.LookupEnv") && !within(dir, getenv):
				t.Errorf("%s: %s: the environment is read by the command line only; take it as configuration", path, call)
			case call == "t.Skip" || call == "t.Skipf" || call == "t.SkipNow":
				t.Errorf("%s: %s: a check that needs a component fails without it", path, call)
			}
		}
		return true
	})
}

func within(dir string, parts []string) bool {
	return slices.ContainsFunc(parts, func(p string) bool { return dir == p || p != "." && strings.HasPrefix(dir, p+"/") })
}

func mayImport(dir, imported string) bool {
	for _, line := range imports {
		if line.part != "." && !within(dir, []string{line.part}) {
			continue
		}
		return within(imported, append([]string{line.part}, line.may...))
	}
	return false
}

func countLines(t *testing.T, path string) int {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := 0
	for s := bufio.NewScanner(f); s.Scan(); {
		n++
	}
	return n
}
