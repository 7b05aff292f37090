package importers

import (
	"context"
	"fmt"
	"strings"
)

// Format is one line of the table of transcript formats.
type Format struct {
	// Name is what --format takes and what reports and event sources say.
	Name string
	// Detect says by its keys whether a file is of this format. It is called once a file, with what was read of its beginning.
	Detect func(Probe) bool
	// Read walks the source and writes its sessions to out. It returns an error only when nothing more can be done for the file (ctx ended,
	// the disk or the log failed); a record that makes no sense goes to out.Malformed.
	Read func(ctx context.Context, src *Source, out *Emitter) error
}

// Formats is the table of formats in the order of detection: several later formats have keys that earlier ones have too. A new format is a
// file and a line here.
func Formats() []Format {
	return []Format{
		atifFormat(),
		miniSWEAgentFormat(),
		sweAgentFormat(),
		piFormat(),
		claudeFormat(),
		openAIFormat(), // last: other formats have its keys too
	}
}

// FormatNames lists the names of the table, for help texts and messages.
func FormatNames() []string {
	var names []string
	for _, f := range Formats() {
		names = append(names, f.Name)
	}
	return names
}

// choose finds the format by name, or by detection when the name is empty or "auto".
func choose(name string, p Probe) (Format, error) {
	formats := Formats()
	if name != "" && name != "auto" {
		for _, f := range formats {
			if f.Name == name {
				return f, nil
			}
		}
		return Format{}, fmt.Errorf("format %.40q is not known: use auto, %s", name, strings.Join(FormatNames(), ", "))
	}
	for _, f := range formats {
		if f.Detect(p) {
			return f, nil
		}
	}
	return Format{}, &UnknownFormatError{Seen: p.describe()}
}

// UnknownFormatError says that a file is of no known format, and what was seen in it.
type UnknownFormatError struct{ Seen string }

func (e *UnknownFormatError) Error() string {
	return "no known format: " + e.Seen + "; name one with --format (" + strings.Join(FormatNames(), ", ") + ")"
}
