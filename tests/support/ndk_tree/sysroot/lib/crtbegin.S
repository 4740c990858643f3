// What every Android binary begins with: the API that it was made for.
	.section .note.android.ident, "a", %note
	.balign 4
	.long 8, 4, 1
	.asciz "Android"
	.long API
