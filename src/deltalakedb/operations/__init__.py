"""Operations on tables: each stages what it needs and makes one commit of it."""
