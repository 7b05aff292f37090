package importers

import (
	"embed"
	"io/fs"
)

//go:embed demo
var demoFiles embed.FS

// Demo is a folder of small transcripts, written for this purpose, in every format of the table: nextstate demo imports them, and tests use
// them where realistic sessions are wanted.
func Demo() fs.FS {
	demo, err := fs.Sub(demoFiles, "demo")
	if err != nil {
		panic("importers: the embedded folder demo is a valid path: " + err.Error())
	}
	return demo
}
