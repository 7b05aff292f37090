package importers

import (
	"encoding/json"
	"math"
	"strings"
	"time"
)

// isoLayouts are the ways in which transcripts write a time. One without a zone is read as UTC.
var isoLayouts = []string{
	time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999Z07:00", "2006-01-02 15:04:05.999999999",
}

// isoTime reads a time; zero when the text is none.
func isoTime(s string) time.Time {
	s = strings.TrimSpace(s)
	for _, layout := range isoLayouts {
		if t, err := time.Parse(layout, s); err == nil {
			return t.UTC()
		}
	}
	return time.Time{}
}

// unixTime reads seconds since 1970, with a fraction; zero when the number is none or no sensible time.
func unixTime(n json.Number) time.Time {
	seconds, err := n.Float64()
	if err != nil || !(seconds > 0 && seconds < 253402300799) { // the end of the year 9999
		return time.Time{}
	}
	whole, fraction := math.Modf(seconds)
	return time.Unix(int64(whole), int64(fraction*1e6)*1000).UTC()
}
