package report

import (
	"bytes"
	_ "embed"
	"html/template"
)

//go:embed page.html
var pageText string

// page is the template. It escapes all that is not a drawing of ours.
var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"svg":       func(d drawing) template.HTML { return template.HTML(d) }, //nolint:gosec // plot.go escapes every text in it
	"judgement": Sample.judgement,
	"place":     Sample.place,
}).Parse(pageText))

// htmlOf is the page: no script, nothing from elsewhere.
func htmlOf(d document) ([]byte, error) {
	var b bytes.Buffer
	if err := page.Execute(&b, d); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
