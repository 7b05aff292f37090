package trainer

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Set is the recipe with some settings replaced, each written as group.name=value: objective.w_dir=0, optimizer.warm_up=10, recipe.epochs=2. The names are
// those of the recipe's JSON; what stands in none of its groups is in the group recipe. A name that is not known and a value that does not fit are errors.
func (r Recipe) Set(settings ...string) (Recipe, error) {
	groups := map[string]any{"objective": &r.Objective, "optimizer": &r.Optimizer, "recipe": &r}
	for _, text := range settings {
		key, value, ok := strings.Cut(text, "=")
		if !ok {
			return r, fmt.Errorf("%q sets nothing: write group.name=value, such as objective.w_dir=0", text)
		}
		group, name, _ := strings.Cut(key, ".")
		if groups[group] == nil {
			return r, fmt.Errorf("the setting %q is not known: it begins with one of %s and a dot", key, strings.Join(slices.Sorted(maps.Keys(groups)), ", "))
		}
		if err := set(groups[group], name, value); err != nil {
			return r, fmt.Errorf("the setting %s=%s: %w", key, value, err)
		}
	}
	return r, r.Validate()
}

// set replaces one field of what to points to, by its name in JSON.
func set(to any, name, value string) error {
	text, err := json.Marshal(to)
	if err != nil {
		return err
	}
	fields := map[string]any{}
	if err := json.Unmarshal(text, &fields); err != nil {
		return err
	}
	maps.DeleteFunc(fields, func(_ string, v any) bool { _, group := v.(map[string]any); return group })
	was, known := fields[name]
	if !known {
		return fmt.Errorf("it is not known; use one of %s", strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
	}
	if _, isText := was.(string); isText {
		quoted, err := json.Marshal(value)
		if err != nil {
			return err
		}
		value = string(quoted)
	}
	text, err = json.Marshal(map[string]json.RawMessage{name: json.RawMessage(value)})
	if err == nil && value != "null" { // which JSON would pass over
		err = json.Unmarshal(text, to)
	}
	if err != nil || value == "null" {
		return fmt.Errorf("the value does not fit; one such as %v does", was)
	}
	return nil
}
