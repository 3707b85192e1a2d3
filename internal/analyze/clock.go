package analyze

import (
	"math"
	"strings"
	"time"

	"github.com/tarik-kv/tarik/internal/bodyedit"
)

// Numbers are instants in the unit that their size suggests: between 2001 and 2286 the four ranges of Unix time do
// not overlap. Below all of them a number counts from the trace's own zero.
const (
	leastUnix = 1e9
	mostUnix  = 1e10
)

// instant reads a raw JSON time: a number of seconds, milliseconds, microseconds or nanoseconds since 1970, a
// string with such a number, or a written date. A small number is relative: scale is the length of its unit in
// nanoseconds.
func instant(raw []byte, scale float64) (int64, bool) {
	switch bodyedit.KindOf(raw) {
	case bodyedit.Number:
		return numericInstant(raw, scale)
	case bodyedit.Text:
		s := raw[1 : len(raw)-1]
		if t, ok := writtenInstant(s); ok {
			return t, true
		}
		return numericInstant(s, scale)
	}
	return 0, false
}

func numericInstant(raw []byte, scale float64) (int64, bool) {
	sec, nano, float, ok := decimal(raw)
	if !ok {
		return 0, false
	}
	for _, u := range [...]struct{ perSecond, nanos int64 }{{1, 1e9}, {1e3, 1e6}, {1e6, 1e3}, {1e9, 1}} {
		if float >= leastUnix*float64(u.perSecond) && float < mostUnix*float64(u.perSecond) {
			return sec*u.nanos + nano/(1e9/u.nanos), true
		}
	}
	if scale == 1e9 && math.Abs(float) < math.MaxInt64/1e9 {
		return sec*1e9 + nano, true
	}
	if v := float * scale; math.Abs(v) < math.MaxInt64/2 {
		return int64(math.Round(v)), true
	}
	return 0, false
}

// decimal splits a plain decimal number into whole units and billionths, exactly; numbers with an exponent go
// through a float.
func decimal(raw []byte) (whole, billionths int64, float float64, ok bool) {
	i, neg := 0, false
	if i < len(raw) && raw[i] == '-' {
		neg = true
		i++
	}
	digits := 0
	for ; i < len(raw) && '0' <= raw[i] && raw[i] <= '9'; i++ {
		if digits++; digits > 19 {
			return 0, 0, 0, false
		}
		whole = whole*10 + int64(raw[i]-'0')
	}
	if digits == 0 || whole < 0 {
		return 0, 0, 0, false
	}
	if i < len(raw) && raw[i] == '.' {
		scale := int64(1e8)
		for i++; i < len(raw) && '0' <= raw[i] && raw[i] <= '9'; i++ {
			billionths += int64(raw[i]-'0') * scale
			scale /= 10
		}
	}
	if i < len(raw) {
		f, ok := bodyedit.Float(raw)
		if !ok || math.Abs(f) > 1e18 {
			return 0, 0, 0, false
		}
		w, frac := math.Modf(f)
		return int64(w), int64(frac * 1e9), f, true
	}
	float = float64(whole) + float64(billionths)/1e9
	if neg {
		return -whole, -billionths, -float, true
	}
	return whole, billionths, float, true
}

// layouts of dates that are not ISO 8601.
var layouts = []string{
	"02/Jan/2006:15:04:05 -0700", // nginx $time_local
	time.RFC1123, time.RFC1123Z, time.ANSIC, time.UnixDate,
	"Jan 2, 2006, 15:04:05", "2006/01/02 15:04:05",
}

// writtenInstant reads a date. One without a zone is taken as UTC: only differences matter.
func writtenInstant(s []byte) (int64, bool) {
	if t, ok := isoInstant(s); ok {
		return t, true
	}
	if len(s) < 16 || len(s) > 40 {
		return 0, false
	}
	text := strings.TrimSpace(string(s))
	for _, l := range layouts {
		if t, err := time.Parse(l, text); err == nil {
			return t.UnixNano(), true
		}
	}
	return 0, false
}

// isoInstant reads YYYY-MM-DD, then T or a space and hh:mm:ss, an optional fraction of any length after a dot or a
// comma, and an optional zone.
func isoInstant(s []byte) (int64, bool) {
	if len(s) < 19 || s[4] != '-' || s[7] != '-' || s[13] != ':' || s[16] != ':' || s[10] != 'T' && s[10] != ' ' && s[10] != 't' {
		return 0, false
	}
	y, ok1 := digits(s[0:4])
	mo, ok2 := digits(s[5:7])
	d, ok3 := digits(s[8:10])
	h, ok4 := digits(s[11:13])
	mi, ok5 := digits(s[14:16])
	se, ok6 := digits(s[17:19])
	if !(ok1 && ok2 && ok3 && ok4 && ok5 && ok6) || mo < 1 || mo > 12 || d < 1 || d > 31 || h > 24 || mi > 59 || se > 60 || y < 1700 || y > 2250 {
		return 0, false
	}
	t := (daysFromCivil(y, mo, d)*86400 + int64(h*3600+mi*60+se)) * 1e9
	i := 19
	if i < len(s) && (s[i] == '.' || s[i] == ',') {
		scale := int64(1e8)
		for i++; i < len(s) && '0' <= s[i] && s[i] <= '9'; i++ {
			t += int64(s[i]-'0') * scale
			scale /= 10
		}
	}
	for i < len(s) && s[i] == ' ' {
		i++
	}
	zone := s[i:]
	switch {
	case len(zone) == 0, string(zone) == "Z", string(zone) == "z", string(zone) == "UTC":
		return t, true
	case zone[0] == '+' || zone[0] == '-':
		hh, ok := digits(zone[1:min(3, len(zone))])
		rest := zone[min(3, len(zone)):]
		if len(rest) > 0 && rest[0] == ':' {
			rest = rest[1:]
		}
		mm, ok2 := 0, true
		if len(rest) > 0 {
			mm, ok2 = digits(rest)
		}
		if !ok || !ok2 || len(zone) > 6 {
			return 0, false
		}
		off := int64(hh*3600+mm*60) * 1e9
		if zone[0] == '-' {
			off = -off
		}
		return t - off, true
	}
	return 0, false
}

func digits(s []byte) (int, bool) {
	n := 0
	for _, c := range s {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return n, len(s) > 0 && len(s) < 9
}

// daysFromCivil counts days from 1970-01-01 in the Gregorian calendar. The year begins in March, so that the leap
// day is its last.
func daysFromCivil(y, m, d int) int64 {
	if m <= 2 {
		y--
		m += 12
	}
	era := y / 400
	yoe := y - era*400
	doy := (153*(m-3)+2)/5 + d - 1
	doe := yoe*365 + yoe/4 - yoe/100 + doy
	return int64(era)*146097 + int64(doe) - 719468
}

// vllmInstant reads the "MM-DD hh:mm:ss" of vLLM's logs, which has no year: one is assumed, a leap one so that no
// date is refused.
func vllmInstant(s []byte) (int64, bool) {
	if len(s) < 14 || s[2] != '-' {
		return 0, false
	}
	var b [24]byte
	copy(b[:], "2024-")
	return isoInstant(b[:5+copy(b[5:], s[:14])])
}
