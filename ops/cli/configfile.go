package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"

	"github.com/alecthomas/kong"
	"gopkg.in/yaml.v3"
)

// Resolver reads flags from a YAML file whose nested keys, joined by "-", are the flags' names. An unknown key is an error.
func Resolver(r io.Reader) (kong.Resolver, error) {
	var tree map[string]any
	if err := yaml.NewDecoder(r).Decode(&tree); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("configuration file: %w", err)
	}
	flat := map[string]any{}
	flatten("", tree, flat)
	return &fileResolver{values: flat}, nil
}

type fileResolver struct{ values map[string]any }

func flatten(prefix string, tree, into map[string]any) {
	for k, v := range tree {
		name := strings.ReplaceAll(prefix+k, "_", "-")
		if sub, ok := v.(map[string]any); ok {
			flatten(name+"-", sub, into)
			continue
		}
		if list, ok := v.([]any); ok {
			words := make([]string, len(list))
			for i, w := range list {
				words[i] = fmt.Sprint(w)
			}
			v = strings.Join(words, ",")
		}
		into[name] = v
	}
}

// Validate refuses keys that no flag of any command has.
func (f *fileResolver) Validate(app *kong.Application) error {
	known := map[string]bool{}
	_ = kong.Visit(app, func(node kong.Visitable, next kong.Next) error {
		if flag, ok := node.(*kong.Flag); ok {
			known[flag.Name] = true
		}
		return next(nil)
	})
	var unknown []string
	for k := range f.values {
		if !known[k] {
			unknown = append(unknown, k)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	sort.Strings(unknown)
	return fmt.Errorf("configuration file: unknown key %q; 'nextstate config print' lists the known ones", unknown[0])
}

// Resolve gives kong the file's value of a flag, or nil.
func (f *fileResolver) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	v, ok := f.values[flag.Name]
	if !ok {
		return nil, nil
	}
	return fmt.Sprint(v), nil
}

// ConfigPrint prints every setting with where it may be set; secrets are masked.
type ConfigPrint struct{}

// Help explains the command.
func (ConfigPrint) Help() string {
	return "Prints the settings in force (flag > environment > file > default) as YAML that can be used as a configuration file.\nSecrets are masked."
}

// Run prints the settings.
func (ConfigPrint) Run(g *Globals, k *kong.Context) error {
	values := map[string]any{}
	var names []string
	for _, f := range k.Model.Flags {
		if f.Name == "help" || f.Name == "config" || f.Name == "json" {
			continue
		}
		var v any
		if f.Target.IsValid() {
			v = f.Target.Interface()
		}
		if f.Tag.Has("secret") && fmt.Sprint(v) != "" {
			v = "********"
		}
		if s, ok := v.(fmt.Stringer); ok {
			v = s.String()
		}
		values[f.Name] = v
		names = append(names, f.Name)
	}
	if g.JSON {
		return g.printJSON(values)
	}
	sort.Strings(names)
	for _, n := range names {
		b, err := yaml.Marshal(map[string]any{n: values[n]})
		if err != nil {
			return err
		}
		g.printf("%s", b)
	}
	return nil
}

// ConfigPath finds the configuration file before flags are parsed: --config, NEXTSTATE_CONFIG, or config.yaml in the data folder.
func ConfigPath(args []string) (path string, required bool) {
	data := DefaultData()
	if d := os.Getenv("NEXTSTATE_DATA"); d != "" {
		data = d
	}
	if c := os.Getenv("NEXTSTATE_CONFIG"); c != "" {
		path, required = c, true
	}
	for i, a := range args {
		next := ""
		if i+1 < len(args) {
			next = args[i+1]
		}
		switch {
		case a == "--config":
			path, required = next, true
		case strings.HasPrefix(a, "--config="):
			path, required = strings.TrimPrefix(a, "--config="), true
		case a == "--data":
			data = next
		case strings.HasPrefix(a, "--data="):
			data = strings.TrimPrefix(a, "--data=")
		}
	}
	if path == "" {
		path = data + "/config.yaml"
	}
	return path, required
}
